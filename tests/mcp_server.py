"""A real MCP server for the tests: `python -m tests.mcp_server stdio`, or `… http PORT`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

server = MCPServer("notes")
notes: dict[str, str] = {}
PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(40)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def read(name: str) -> dict[str, str]:
    """Read a note."""
    if name not in notes:
        raise ToolError(f"there is no note {name!r}")
    return {"name": name, "text": notes[name]}


@server.tool(annotations=ToolAnnotations(destructive_hint=False))
def write(name: str, text: str = "empty") -> str:
    """Write a note."""
    notes[name] = text
    return f"wrote {name}"


@server.tool()
def delete(name: str) -> str:
    """Delete a note."""
    return notes.pop(name)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def secret() -> str:
    """The secret that the server was started with."""
    return os.environ.get("NOTES_SECRET", "none")


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def crash(marker: str) -> str:
    """End the server's process, the first time."""
    if not os.path.exists(marker):
        with open(marker, "w"):
            os._exit(1)
    return "still here"


@server.tool()
def stop() -> str:
    """End the server's process."""
    os._exit(1)


@server.tool()
async def add_tool(context: Context) -> None:
    """Offer one tool more."""

    def added() -> int:
        return 1

    server.add_tool(added)
    await context.notify_tools_changed()


@server.resource("notes://rules", mime_type="text/markdown")
def rules() -> str:
    """How notes are written."""
    return "Be brief."


@server.resource("notes://cover", mime_type="image/png")
def cover() -> bytes:
    """The picture on the cover."""
    return PICTURE


@server.resource("notes://note/{name}")
def note(name: str) -> str:
    """One note."""
    return notes[name]


@server.prompt()
def summary(name: str) -> str:
    """Summarise a note."""
    return f"Summarise the note {name}."


if os.environ.get("NOTES_ODD"):

    @server.tool(name="odd")
    def odd(x: Annotated[int, Field(json_schema_extra={"not": "none"})]) -> int:
        """A tool whose schema is none."""
        return x


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", port=int(sys.argv[2]))
