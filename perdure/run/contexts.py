"""What a Request is told: its context as one answer of a query, whatever it holds (R6.1, R6.8, R18.3)."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.model.dialects import DIALECTS
from perdure.model.dialects.asking import Ask
from perdure.model.dialects.saying import said_by
from perdure.model.wire import RequestContext
from perdure.run.agents import Agent, Context
from perdure.run.parts.costs import summed
from perdure.run.parts.rendering import fit_messages
from perdure.run.past.wire import Progress
from perdure.run.prompts import Prompt, Revision
from perdure.run.reading import Reading
from perdure.run.stopping import Limit
from perdure.run.wire import Prepared
from perdure.tools.tool import Tool
from perdure.values.jsons import JsonObject, dumps
from perdure.values.limits.sizes import Sizes
from perdure.values.state import State


class Contexts:
    """Makes the contexts of one run's Requests, each of at most `max_payload` bytes."""

    def __init__(self, agent: Agent, context: Context, prepared: Prepared, sizes: Sizes, reading: Reading) -> None:
        self._agent, self._context, self._parts = agent, context, prepared.prompt
        self._dialect = DIALECTS[agent.config.dialect]
        self._max_payload = prepared.max_payload
        self._sizes = sizes
        self._reading = reading
        self._said = said_by(agent.output_schema)
        self._parameters: dict[tuple[bool, bool, int], JsonObject] = {}
        self._beside: dict[tuple[bool, bool, int], list[tuple[str, int]]] = {}

    def make(
        self,
        tools: Mapping[str, Tool],
        progress: Progress,
        state: State,
        limit: Limit | None,
        *,
        final: bool,
        server: str = "",
        revision: Revision | None = None,
    ) -> RequestContext:
        """The context as things stand, for a `server`. One that is too large is shown cut from then on: it is too long for any model (R9.7)."""
        context = self._make(tools, progress, state, limit, final, server, revision)
        if self._size_of(context) > self._max_payload and not progress.tight:
            progress.tight = True
            context = self._make(tools, progress, state, limit, final, server, revision)
        if (size := self._size_of(context)) > self._max_payload:
            room = self._max_payload - (size - sum(map(self._sizes.of, context.messages)))
            context.messages = fit_messages(context.messages, room, self._sizes)
        return context

    def _make(
        self,
        tools: Mapping[str, Tool],
        progress: Progress,
        state: State,
        limit: Limit | None,
        final: bool,
        server: str,
        revision: Revision | None,
    ) -> RequestContext:
        kinds = [merged.kind for merged in self._context.data]
        if self._dialect.keeps_turns:  # which show what has happened
            shown = self._reading.shown_start(self._context.initial_state)
        else:
            shown = self._reading.shown_state(state, tight=progress.tight)
        keep = None if revision is None else revision.keep  # told of where the Request tells of what is held
        ask = Ask(
            tools={} if final else dict(tools),
            taught={name: tool for name, tool in tools.items() if name != keep},
            output=self._agent.output_schema,
            final=final,
            max_calls=self._agent.config.max_calls,
            parallel=self._agent.config.parallel,
            instances=self._context.instances,
            kinds=kinds,
            control=self._agent.config.teaches_control,
            server=server,
        )
        kind = final, revision is not None and revision.keep is not None, len(tools)
        if kind not in self._parameters:  # schemas are composed once a run, not once a Request
            self._parameters[kind] = self._dialect.parameters(ask)
        prompt = Prompt(self._context, self._parts, self._dialect, ask, progress, shown, self._reading)
        messages = prompt.messages(limit, revision)
        if kind not in self._beside:
            self._beside[kind] = (
                [("beside the messages", len(dumps(self._parameters[kind])))] if self._parameters[kind] else []
            )
        return RequestContext(
            messages=messages,
            parameters=self._parameters[kind],
            parts=summed([*prompt.parts, *self._beside[kind]]),
            left_out=self._parts.left_out,
            dialect=self._agent.config.dialect,
            vocabulary=self._dialect.vocabulary(ask.tools, kinds).model_copy(update={"said": self._said}),
        )

    def _size_of(self, context: RequestContext) -> int:
        beside = 1000 + self._sizes.of(context.parameters) + len(context.vocabulary.model_dump_json().encode())
        return beside + sum(map(self._sizes.of, context.messages))
