"""A real MCP server for the tests, with the arguments `stdio`, `http PORT`, or `oauth PORT`: see `tests.forked_cli`."""

from __future__ import annotations

import base64
import os
import secrets
import sys
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequiredResult,
    SamplingMessage,
    TextContent,
    ToolAnnotations,
)
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

TOKENS: set[str] = set()
"""Tokens of OAuth that the server accepts now."""


class Verifier:
    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken(token=token, client_id="worker", scopes=["notes"]) if token in TOKENS else None


def protection() -> dict[str, Any]:
    """The server's own authorization, for `oauth PORT`."""
    if sys.argv[1:2] != ["oauth"]:
        return {}
    at = f"http://127.0.0.1:{sys.argv[2]}"
    auth = AuthSettings(
        issuer_url=at, resource_server_url=f"{at}/mcp", required_scopes=["notes"], validate_token_resource=False
    )
    return {"auth": auth, "token_verifier": Verifier()}


server = MCPServer("notes", **protection())
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


class Sure(BaseModel):
    sure: bool
    note: str = "none"


@server.tool(annotations=ToolAnnotations(destructive_hint=False))
async def ask(context: Context) -> str | InputRequiredResult:
    """Ask the client's user."""
    if (given := context.input_responses) is None:
        params = ElicitRequestFormParams(message="Sure?", requested_schema=Sure.model_json_schema())
        return InputRequiredResult(input_requests={"sure": ElicitRequest(params=params)}, request_state="a state")
    answer = given["sure"]
    assert isinstance(answer, ElicitResult)
    return f"{answer.action} {sorted((answer.content or {}).items())} after {context.request_state}"


@server.tool(annotations=ToolAnnotations(destructive_hint=False))
async def pay(context: Context) -> str | InputRequiredResult:
    """Have the client's user pay on a page."""
    if (given := context.input_responses) is None:
        page = ElicitRequestURLParams(message="Pay for it.", url="https://pay.example/17")
        return InputRequiredResult(input_requests={"pay": ElicitRequest(params=page)})
    answer = given["pay"]
    assert isinstance(answer, ElicitResult)
    return f"{answer.action} {answer.content}"


@server.tool(annotations=ToolAnnotations(destructive_hint=False))
async def summarise(text: str, context: Context) -> str | InputRequiredResult:
    """Have the client's model summarise a text."""
    if (given := context.input_responses) is None:
        message = SamplingMessage(role="user", content=TextContent(type="text", text=f"Summarise: {text}"))
        params = CreateMessageRequestParams(messages=[message], max_tokens=100, system_prompt="Be brief.")
        return InputRequiredResult(input_requests={"text": CreateMessageRequest(params=params)})
    answer = given["text"]
    assert isinstance(answer, CreateMessageResult)
    assert isinstance(answer.content, TextContent)
    return f"{answer.model}: {answer.content.text}"


@server.tool(annotations=ToolAnnotations(destructive_hint=False))
async def ask_for_ever() -> InputRequiredResult:
    """Ask the client nothing, in place of a result."""
    return InputRequiredResult(request_state="state")


@server.tool()
def forget_tokens() -> None:
    """Accept no token that was given out before."""
    TOKENS.clear()


@server.custom_route("/.well-known/oauth-authorization-server", methods=["GET"])  # type: ignore[untyped-decorator]
async def metadata(request: Request) -> Response:
    at = str(request.base_url).rstrip("/")
    issuer = os.environ.get("NOTES_ISSUER", at)
    return JSONResponse(
        {
            "issuer": issuer,
            "authorization_endpoint": f"{at}/authorize",
            "token_endpoint": f"{at}/token",
            "response_types_supported": ["code"],
            "grant_types_supported": ["client_credentials"],
        }
    )


@server.custom_route("/token", methods=["POST"])  # type: ignore[untyped-decorator]
async def token(request: Request) -> Response:
    form = await request.form()
    basic = base64.b64encode(b"worker:s3cret-of-the-worker").decode()
    if request.headers.get("authorization") != f"Basic {basic}" or form.get("grant_type") != "client_credentials":
        return JSONResponse({"error": "invalid_client"}, 401)
    TOKENS.add(new := f"token-{secrets.token_hex(8)}")
    return JSONResponse({"access_token": new, "token_type": "Bearer", "expires_in": 3600, "scope": form.get("scope")})


if os.environ.get("NOTES_ODD"):

    @server.tool(name="odd")
    def odd(x: Annotated[int, Field(json_schema_extra={"not": "none"})]) -> int:
        """A tool whose schema is none."""
        return x


def main() -> None:
    """Serve until killed, with the arguments of the command line."""
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", port=int(sys.argv[2]))
