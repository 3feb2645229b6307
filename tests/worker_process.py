"""A worker as a process of its own, to be killed: `python -m tests.worker_process ADDRESS QUEUE MODEL_URL BELL_PORT FOLDER`.

Its tools `note` and `plain` make one side effect per idempotency key: a file in FOLDER, made only if it is not there. Every attempt
rings the test's bell (a TCP port) and goes on when it is answered; with `die` the first attempt then kills the worker: the
effect is there, and its end is not reported.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from openai import AsyncOpenAI
from temporalio.client import Client

from perdure import ToolContext, tool
from perdure.hosting import worker
from perdure.hosting.connection import data_converter
from tests.support import registry


def main() -> None:
    """Work until killed, with the arguments of the command line."""
    address, queue, model, bell, name = sys.argv[1:]
    folder = Path(name)

    @tool(retries=5, heartbeat=1, timeout=60)
    async def note(text: str, context: ToolContext, die: bool = False) -> str:
        """Note a text."""
        effect = folder / context.idempotency_key.replace("/", "_")
        with (folder / "effects.log").open("a") as log:
            try:
                effect.touch(exist_ok=False)
                log.write(context.idempotency_key + "\n")
            except FileExistsError:
                pass
        reader, writer = await asyncio.open_connection("127.0.0.1", int(bell))
        writer.write(f"{context.call_id} {context.attempt}\n".encode())
        await reader.readline()
        writer.close()
        if die and context.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return text

    @tool
    async def plain(text: str, context: ToolContext) -> str:
        """Note a text, with the defaults of every option."""
        return await note(text, context)

    @tool(retries=5, heartbeat=1, timeout=60)
    async def release(text: str, context: ToolContext) -> str:
        """Take a reservation back, once for each key."""
        return await note(f"released {text}", context)

    @tool(undo=release, undo_params={"text": "†result"}, heartbeat=1, timeout=60)
    async def reserve(text: str, context: ToolContext) -> str:
        """Reserve something."""
        return await note(text, context)

    worker.STICKY = timedelta(seconds=1)  # a killed worker's tasks go to the next one earlier

    async def work() -> None:
        client = await Client.connect(address, data_converter=data_converter())
        asking = AsyncOpenAI(base_url=model, api_key="scripted", max_retries=0)
        async with worker.build_worker(
            client, registry([note, plain, reserve, release]), task_queue=queue, model=asking
        ):
            await asyncio.Event().wait()

    asyncio.run(work())


if __name__ == "__main__":
    main()
