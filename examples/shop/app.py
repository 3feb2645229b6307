"""The shop's application: customers write and read the answer while it is written, the staff decides.

`uvicorn examples.shop.app:app`, beside `perdure dev --tools examples.shop.support,examples.shop.nightly`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import StreamingResponse

from examples.shop.support import Customer, support
from perdure import MessageRefusedError, Perdure, RunNotFoundError
from perdure.client.session import Session

# In place of your own sign-in: a token, and whose it is.
CUSTOMERS = {"token-of-ann": Customer(number=1, name="Ann"), "token-of-bo": Customer(number=2, name="Bo")}
STAFF = {"token-of-eve": "eve"}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
    app.state.perdure = await Perdure.connect(lazy=True)
    yield


app = FastAPI(title="The shop's support desk", lifespan=lifespan)


def customer(authorization: Annotated[str, Header()] = "") -> Customer:
    """Return the customer who is signed in."""
    if (found := CUSTOMERS.get(authorization.removeprefix("Bearer "))) is None:
        raise HTTPException(401, "sign in first")
    return found


def staff(authorization: Annotated[str, Header()] = "") -> str:
    """Return the name of the person at the desk."""
    if (found := STAFF.get(authorization.removeprefix("Bearer "))) is None:
        raise HTTPException(403, "this is for the staff")
    return found


def session_of(request: Request, number: int) -> Session:
    """Return the one conversation that a customer has with the desk."""
    perdure: Perdure = request.app.state.perdure
    return perdure.session(f"customer-{number}", tenant="shop", agent=support)


@app.post("/messages")
async def write(request: Request, who: Annotated[Customer, Depends(customer)], text: str) -> StreamingResponse:
    """Send a message to the desk, and stream what comes of it as server-sent events."""
    session = session_of(request, who.number)
    receipt = await session.send(text, sender=who.name, context=who)

    async def lines() -> AsyncIterator[str]:
        async for event in session.stream(receipt, topics=["assistant", "approval", "lifecycle"]):
            yield f"event: {event.topic}\ndata: {json.dumps(event.as_json())}\n\n"
        yield f"event: reply\ndata: {json.dumps(await session.reply(receipt))}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


@app.get("/customers/{number}/waiting", dependencies=[Depends(staff)])
async def waiting(request: Request, number: int) -> list[dict[str, Any]]:
    """List what waits for the staff in a customer's conversation."""
    try:
        found = await session_of(request, number).waiting()
    except RunNotFoundError:
        return []
    return [{"call": each.call, "digest": each.digest, "tool": each.tool, "params": each.params} for each in found]


@app.post("/customers/{number}/decisions")
async def decide(
    request: Request,
    name: Annotated[str, Depends(staff)],
    number: int,
    call: str,
    digest: str,
    decision: Literal["approve", "reject"],
) -> dict[str, Any]:
    """Decide about a call, exactly as `waiting` has shown it."""
    decided: dict[str, Any] = {"call": call, "digest": digest, "decision": decision}
    try:
        return await session_of(request, number).decide(decided, sender=name, rights=["approve"])
    except (MessageRefusedError, RunNotFoundError) as error:
        raise HTTPException(409, str(error)) from None
