"""`python -m examples.desk.talk`: the conversation, with two senders, a correction, an approval, a restart and a summary."""

from __future__ import annotations

import asyncio
from typing import Any

from examples.desk.agent import AGENT, COLLEAGUE, CUSTOMER
from examples.desk.model import answer
from perdure import Perdure
from perdure.client.session import Session
from perdure.hosting.server import embedded_server
from perdure.sessions.wire import SessionView
from perdure.testing import ScriptedModel, run_locally

KEY = "ann@example.com"
LONG = "By the way, this is how the lamp came to be ordered: " + "there was a dark corner, and " * 60


async def talk(server: Any) -> SessionView:
    """Have the conversation, and print it; the session as it stands at its end."""
    async with _worker(server) as local:
        session = Perdure(local.client, task_queue="desk").session(KEY, tenant="shop", agent=AGENT)
        await _say(session, "Where is my order A-17?")
        receipt = await session.send("It came broken, I want my money back", sender="ann", rights=CUSTOMER)
        print("ann: It came broken, I want my money back")
        await _waits(session, "1.0")
        # A call waits for a person, so a message would wait for the run's end. This one corrects the plan at once.
        await session.send("She means the chair, B-4", sender="bob", rights=COLLEAGUE, mode="steer")
        print("bob: She means the chair, B-4")
        call = await _waits(session, "2.0")
        print(f"     (waits for a person: {call})")
        await session.decide({"call": "2.0", "decision": "approve"}, sender="bob", rights=COLLEAGUE)
        print(f"desk: {await session.reply(receipt, 30)}")
    print("     (the worker ends, and another one begins)")
    async with _worker(server) as local:
        session = Perdure(local.client, task_queue="desk").session(KEY, tenant="shop")
        await _say(session, LONG)
        await _say(session, LONG)
        await _say(session, "What did I have paid back?")
        return await session.show()


def _worker(server: Any) -> Any:
    """A worker that lasts as long as the block does; the session does not need it to be the same."""
    return run_locally(
        AGENT,
        model=ScriptedModel(answer, strict=False),
        tools=["examples.desk.tools"],
        server=server,
        task_queue="desk",
    )


async def _say(session: Session, text: str) -> None:
    print(f"ann: {text[:70]}")
    receipt = await session.send(text, sender="ann", rights=CUSTOMER)
    print(f"desk: {await session.reply(receipt, 30)}")


async def _waits(session: Session, call: str) -> str:
    """The call that waits for a person, once it does."""
    async with asyncio.timeout(30):
        while True:
            run = await session.run()
            waiting = [] if run is None else await run.waiting()
            if found := [each for each in waiting if each.call == call]:
                return f"{found[0].tool} {found[0].params}"
            await asyncio.sleep(0.05)


async def main() -> None:
    """The conversation on a server of its own."""
    async with embedded_server(ui=False) as server:
        await talk(server)


if __name__ == "__main__":
    asyncio.run(main())
