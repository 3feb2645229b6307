"""A request of an MCP client: its caller, its client's capabilities, and errors in the protocol's form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request

from perdure.errors import PerdureError, RunNotFoundError
from perdure.gateway.callers import APPROVE, Caller
from perdure.gateway.errors import HttpError, log_problem

McpContext: TypeAlias = ServerRequestContext[Any, Request]
TASKS: Final = "io.modelcontextprotocol/tasks"
"""The extension of 2026-07-28 by which a client accepts a task in place of a result."""


def caller_in(context: McpContext) -> Caller:
    """Return the caller, whom the gateway's frame has identified."""
    assert context.request is not None
    caller: Caller = context.request.state.caller
    return caller


def is_modern(context: McpContext) -> bool:
    """Whether the client uses version 2026-07-28 or later, in which each request lists its client's capabilities."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def takes_tasks(context: McpContext) -> bool:
    """Whether the client of this request accepts a task in place of a result."""
    capabilities = context.session.client_capabilities
    return is_modern(context) and TASKS in ((capabilities and capabilities.extensions) or {})


def check_takes_tasks(context: McpContext, task_id: str) -> None:
    """Raise `MCPError` if the client has not declared the extension for tasks (-32021), or its header names another task (-32020)."""
    require_client_extension(context, TASKS)
    assert context.request is not None
    if decode_header_value(context.request.headers.get(MCP_NAME_HEADER)) != task_id:
        words = f"{MCP_NAME_HEADER} header does not match the request body's 'taskId' parameter"
        raise MCPError(types.HEADER_MISMATCH, words)


def may_decide(context: McpContext) -> bool:
    """Whether the client can show its user a form, and its token may decide approval requests."""
    capabilities = context.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities else None
    # A client that names no mode supports forms.
    has_forms = elicitation is not None and (elicitation.form is not None or elicitation.url is None)
    return is_modern(context) and has_forms and caller_in(context).may(APPROVE)


@contextmanager
def as_mcp(missing: str = "the task does not exist") -> Iterator[None]:
    """Translate errors into MCP's. `missing`: the words for an unknown run, or another tenant's."""
    try:
        yield
    except RunNotFoundError:
        raise MCPError(types.INVALID_PARAMS, missing) from None
    except (PerdureError, HttpError) as error:
        problem = log_problem(error)
        code = types.INTERNAL_ERROR if problem.status >= 500 else types.INVALID_PARAMS
        raise MCPError(code, problem.detail) from None
