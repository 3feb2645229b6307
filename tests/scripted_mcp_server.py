"""An MCP server that says what it is told to, also what no library would let it say: `python -m tests.scripted_mcp_server SCRIPT`.

SCRIPT is a JSON file: `tools` as they are listed, and `answers`, by tool the results of its calls, one after another, the last for all
that follow. An answer may hold `_ask` (a request that the server sends first, its response is `asked` in the file `SCRIPT.asked`), `_progress` (a list of params), `_error` (a JSON-RPC error), `_raw` (a line as it stands), `_exit`, `_tools` (the list
from now on, announced), `_flood` (a text that is printed again and again, TOKEN for the call's progress token), `_silent` (never answered), and `_then_floods` (prints without end, once it was answered). `capabilities` are added to those of tools;
`lists` are results by method.
`silent: true` reads and answers nothing; `words` go to stderr first.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def say(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def ask(path: str, steps: list[dict[str, Any]]) -> None:
    """Send requests of the server's own, one after the other, until one is refused."""
    for number, step in enumerate(steps):
        say({"id": f"ask-{number}", **step})
        asked = next(each for each in map(json.loads, sys.stdin) if each.get("id") == f"ask-{number}")
        with open(f"{path}.asked", "a", encoding="utf-8") as file:
            print(json.dumps(asked), file=file)
        if "error" in asked:
            return


def finish(reply: dict[str, Any], answer: dict[str, Any]) -> None:
    floods = answer.pop("_then_floods", False)
    say({**reply, "result": answer})
    while floods:
        time.sleep(0.1)
        print("x" * 10_000, end="", flush=True)


def main(path: str) -> None:
    with open(path, encoding="utf-8") as file:
        script = json.load(file)
    if words := script.get("words"):
        print(words, file=sys.stderr, flush=True)
    tools = script.get("tools", [])
    for line in sys.stdin:
        message = json.loads(line)
        if script.get("silent") or "id" not in message:
            continue
        reply, method, params = {"id": message["id"]}, message["method"], message.get("params", {})
        if method == "initialize":
            capabilities = {"tools": {"listChanged": True}, **script.get("capabilities", {})}
            about = {"protocolVersion": params["protocolVersion"], "serverInfo": {"name": "scripted", "version": "1"}}
            say({**reply, "result": {**about, "capabilities": capabilities}})
        elif method == "tools/list":
            say({**reply, "result": script.get("list", {"tools": tools})})
        elif method == "tools/call":
            left = script["answers"][params["name"]]
            answer = left.pop(0) if len(left) > 1 else left[0]
            ask(path, answer.get("_ask", []))
            for step in answer.pop("_progress", []):
                token = params["_meta"]["progressToken"]
                say({"method": "notifications/progress", "params": {"progressToken": token, **step}})
            if "_tools" in answer:
                tools = answer.pop("_tools")
                say({"method": "notifications/tools/list_changed"})
            while flood := answer.get("_flood"):
                print(flood.replace("TOKEN", json.dumps(params["_meta"]["progressToken"])), end="", flush=True)
            if "_exit" in answer:
                os._exit(answer["_exit"])
            if "_raw" in answer:
                print(answer["_raw"], flush=True)
            elif "_error" in answer:
                say({**reply, "error": answer["_error"]})
            elif "_silent" not in answer:
                finish(reply, answer)
        else:
            found = script.get("lists", {}).get(method)
            missing = {"error": {"code": -32601, "message": "Method not found"}}
            say({**reply, **({"result": found} if found else missing)})


if __name__ == "__main__":
    main(sys.argv[1])
