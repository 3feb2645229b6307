"""An MCP server of 2025-11-25 that runs calls at once and asks while they run: `python -m tests.asking_mcp_server`.

`ask` asks for `who`, and returns what it was called with and who has answered. `wait` returns once an `ask` has asked. `pay` wants a page
opened first, by an error. `slow` returns some time after a call was cancelled, with the number of its calls.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

FORM = {"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]}
HINTS = {"destructiveHint": False}
TOOLS = [
    {"name": name, "inputSchema": {"type": "object"}, "annotations": HINTS} for name in ("ask", "wait", "pay", "slow")
]
PAGE = {"mode": "url", "message": "Pay.", "url": "https://pay.example/1", "elicitationId": "e1"}
asked = asyncio.Event()
cancelled = asyncio.Event()
slow: list[str] = []
answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
paid: list[str] = []


def say(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


async def call(id: Any, name: str, arguments: dict[str, Any]) -> None:
    if name == "wait":
        await asked.wait()
        words = "waited"
    elif name == "slow":
        slow.append("")
        await cancelled.wait()
        await asyncio.sleep(0.3)
        words = f"slow {len(slow)}"
    elif name == "pay":
        paid.append("")
        if len(paid) == 1:
            say({"id": id, "error": {"code": -32042, "message": "open a page", "data": {"elicitations": [PAGE]}}})
            return
        words = "paid"
    else:
        key = f"ask-{id}"
        answers[key] = asyncio.get_running_loop().create_future()
        say({"id": key, "method": "elicitation/create", "params": {"message": str(arguments), "requestedSchema": FORM}})
        asked.set()
        answer = await answers[key]
        words = f"{arguments['for']} by {answer['result']['content']['who']}" if "result" in answer else "refused"
    say({"id": id, "result": {"content": [{"type": "text", "text": words}]}})


async def main() -> None:
    running = set()
    while line := await asyncio.to_thread(sys.stdin.readline):
        message = json.loads(line)
        if message.get("id") in answers and "method" not in message:
            answers[message["id"]].set_result(message)
        elif message.get("method") == "tools/call":
            params = message["params"]
            running.add(asyncio.create_task(call(message["id"], params["name"], params["arguments"])))
        elif message.get("method") == "notifications/cancelled":
            cancelled.set()
        elif message.get("method") == "initialize":
            about = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "asking", "version": "1"}}
            say({"id": message["id"], "result": {**about, "capabilities": {"tools": {}}}})
        elif message.get("method") == "tools/list":
            say({"id": message["id"], "result": {"tools": TOOLS}})
        elif "id" in message:
            say({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})


if __name__ == "__main__":
    asyncio.run(main())
