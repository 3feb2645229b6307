"""Runs, plans and transcripts as resources of an MCP client."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote, unquote

from mcp import types
from mcp.shared.exceptions import MCPError

from perdure.client.run import Run
from perdure.client.selection import Selection
from perdure.errors import clip
from perdure.gateway.adapter import Gateway
from perdure.gateway.answers import with_output
from perdure.gateway.callers import READ, Caller
from perdure.gateway.mcp._context import McpContext, as_mcp, caller_in
from perdure.gateway.mcp._prompts import JSON, MOST, Prompts
from perdure.values.json import dumps

LISTED: Final = 50
"""Runs on a page."""
RUN: Final = "perdure:///runs/{run}"
PLAN: Final = "perdure:///runs/{run}/plan"
TRANSCRIPT: Final = "perdure:///sessions/{session}/transcript"
_TEMPLATES: Final = {
    RUN: ("run", "A run: its status, Requests, calls, state, output and usage."),
    PLAN: ("plan", "The calls of a run, with their parameters, statuses and dependencies."),
    TRANSCRIPT: ("transcript", "The messages, runs and replies of a session, oldest first."),
}
_URI: Final = re.compile(
    r"perdure:///(?:runs/(?P<run>[^/?#]+)(?P<plan>/plan)?|sessions/(?P<session>[^/?#]+)/transcript)"
)


class Resources:
    """The methods `resources/*`, and completion."""

    def __init__(self, gateway: Gateway, prompts: Prompts) -> None:
        self._gateway = gateway
        self._prompts = prompts

    async def list_resources(self, context: McpContext, params: Any) -> types.ListResourcesResult:
        """List the tenant's runs and their plans, the newest first."""
        caller = _reader(context)
        with as_mcp():
            page = await self._gateway.perdure.page_of_runs(
                Selection(tenant=caller.tenant), size=LISTED, page=params.cursor if params else None
            )
        found = []
        for row in page.rows:
            about = f"{row.agent or 'a run'}, {row.status}, {row.started_at:%Y-%m-%d %H:%M}"
            for template, (name, _) in _TEMPLATES.items():
                if template != TRANSCRIPT:
                    uri = template.format(run=quote(row.id, safe=""))
                    found.append(types.Resource(uri=uri, name=f"{name} {row.id}", description=about, mime_type=JSON))
        return types.ListResourcesResult(resources=found, next_cursor=page.following)

    async def list_templates(self, context: McpContext, _: Any) -> types.ListResourceTemplatesResult:
        _reader(context)
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(uri_template=uri, name=name, description=about, mime_type=JSON)
                for uri, (name, about) in _TEMPLATES.items()
            ]
        )

    async def read(self, context: McpContext, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        caller = _reader(context)
        missing = f"no such resource: {clip(params.uri, 200)!r}"
        found = _URI.fullmatch(params.uri)
        if found is None:
            raise MCPError(types.INVALID_PARAMS, missing, {"uri": params.uri})
        with as_mcp(missing):
            if found["session"]:
                entries = await self._gateway.session(caller, unquote(found["session"])).read_entries()
                text = dumps([*entries])
            else:
                run = await self._gateway.own_run(caller, unquote(found["run"]))
                text = await (run.value("calls") if found["plan"] else _whole(run))
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=params.uri, mime_type=JSON, text=text)]
        )

    async def complete(self, context: McpContext, params: types.CompleteRequestParams) -> types.CompleteResult:
        """Complete an argument of a prompt, or the id of a run or a session in a resource's URI."""
        caller, argument = _reader(context), params.argument
        with as_mcp():
            if isinstance(params.ref, types.PromptReference):
                found = self._prompts.complete(params.ref.name, argument)
            elif params.ref.uri == TRANSCRIPT:
                sessions = await self._gateway.perdure.page_of_sessions(tenant=caller.tenant, size=MOST)
                found = [row.session for row in sessions.rows]
            elif params.ref.uri in _TEMPLATES:
                runs = await self._gateway.perdure.page_of_runs(Selection(tenant=caller.tenant), size=MOST)
                found = [row.id for row in runs.rows]
            else:
                raise MCPError(types.INVALID_PARAMS, f"ref.uri: {params.ref.uri!r} is not a resource template")
        found = [each for each in found if each.startswith(argument.value)]
        return types.CompleteResult(
            completion=types.Completion(values=found[:MOST], total=len(found), has_more=len(found) > MOST)
        )


def _reader(context: McpContext) -> Caller:
    caller = caller_in(context)
    with as_mcp():
        caller.check(READ, "read runs and sessions")
    return caller


async def _whole(run: Run[Any]) -> str:
    return dumps((await with_output(run, await run.view())).result().as_json())
