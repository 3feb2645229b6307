"""Provenance in a run: the sources of its model's prompts, its calls and its results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from perdure.approvals.decisions import digest
from perdure.errors import CallError, ReferenceSyntaxError, StateError
from perdure.plan import Call, Plan
from perdure.runs.agent import Context, output_schema
from perdure.runs.progress import RunProgress
from perdure.runs.prompt_parts import PromptParts
from perdure.runs.wire import CallView
from perdure.tools.tool import Tool, gives_tools
from perdure.values.json import Json, JsonObject
from perdure.values.limits import MAX_STATE_SHOWN
from perdure.values.messages import MergedMessages
from perdure.values.provenance import (
    AGENT,
    MODEL,
    NOWHERE,
    USER,
    KnownSources,
    Labels,
    Sources,
    join,
    join_all,
    rule_name,
    shape_of,
    shown_key,
    taken_by,
    tool_source,
    untrusted_sources,
)
from perdure.values.references import Missing, Path, Reference, get, overlaps, parse_expression, parse_scope
from perdure.values.sizes import Sizes, preview
from perdure.values.state import State, Write, kind_of, scope_path, state_key
from perdure.values.templates import parse_template

_PLACED: Final = frozenset({"_id", "_after", "_outputPath", "_outputMethod"})
"""Keys that place a call in its plan. They do not change what the call does."""


def shows_values(call: Call) -> bool:
    """Whether the call's error, or a person's edit of it, may hold values of its parameters."""
    return call.state.error is not None or bool(call.state.notes) or call.approval is not None


def looked_at(call: Call) -> tuple[list[Reference], list[Path]]:
    """Return the references that the call and all calls inside it read, and the paths that they write."""
    read: list[Reference] = []
    paths: list[Path] = []
    for each in call.written():
        templates = [each.spec.condition, each.spec.template, each.spec.soft]
        if (loop := each.spec.loop) is not None:
            templates += [loop.each, *(until.template for until in (loop.until, loop.before) if until is not None)]
            paths += loop.writes
        read += [reference for template in templates for reference in template.references()]
        paths += [path for alternative in each.spec.paths for path in alternative]
    return read, paths


def reference_of(text: str) -> Reference:
    try:
        found = parse_expression(text)
    except ReferenceSyntaxError:
        return Reference("")
    return found if isinstance(found, Reference) else Reference("")


def print_of(raw: JsonObject) -> str:
    """Return the digest of a call. A condition or a loop counts; the call's place in its plan does not."""
    return digest({key: value for key, value in raw.items() if key not in _PLACED})


HIDDEN: Final = (
    "not shown, because it may hold text that others wrote; refer to values, and let a delegate without tools read them"
)
CONVERSATION: Final = "conversation"
"""Kind under which a session passes untrusted sources of the earlier conversation."""
KEPT_PLANNED: Final = 500
"""Most kept digests of calls of trusted Requests that did not run. The calls stay trusted if a later Request repeats
them.
"""
Show: TypeAlias = str | Mapping[str, str]
"""`config.show`: `values`, `shape`, or one of them by tool."""


class RunProvenance:
    """The provenance of one run. For a delegate, `received` holds the sources of its input, by reference."""

    def __init__(
        self,
        context: Context,
        received: Mapping[str, Collection[str]],
        show: Show,
        delegates: Mapping[str, JsonObject] | None = None,
        sizes: Sizes | None = None,
    ) -> None:
        self._show = show
        self._delegates = delegates or {}
        self._received = [(reference_of(text), frozenset(names)) for text, names in received.items()]
        self.data: dict[str, Labels] = {}
        """Labels of the data that the run received, by kind."""
        for kind in context.values():
            person = context.has_input and kind == "input"
            self.data[kind] = Labels(USER if person else AGENT)
        for reference, names in self._received:
            if reference.kind in self.data:
                self.data[reference.kind].write(reference.path, None, "set", names)
        self._planned = next((names for reference, names in self._received if reference.kind == "plan"), AGENT)
        """Authors of the plan that the run received. In a part of a loop they are the authors of the loop."""
        self.conversation_sources = [
            name for reference, names in self._received if reference.kind == CONVERSATION for name in sorted(names)
        ]
        """Untrusted sources of the conversation that a session's run continues."""
        self.conversation_sources = sorted({*self.conversation_sources, *untrusted_sources(context.history_sources)})
        self._noted: set[str] = set()  # calls of a plan that continues under another Request (R10.5)
        self._types: dict[str, JsonObject] = {}
        """Known result type by call, for calls whose results are hidden."""
        self.state = State(self.first_writes(context.initial_state), sizes or Sizes())
        """The run's state, with the provenance of each write."""
        self.read_by_model: Sources = NOWHERE
        """Untrusted sources that the running Request's model has read."""

    def instruct(self, parts: PromptParts) -> None:
        """Record untrusted skills and files of every prompt. The model has read those that are not hidden."""
        shown = join_all(untrusted_sources(each) for each in parts.sources() if not self.hides(each))
        self.conversation_sources = sorted({*self.conversation_sources, *shown})

    def offer(self, hosted: Iterable[str]) -> None:
        """Record the hosted tools that Requests offer.

        A model reads their results while it writes, and calls start meanwhile. So its whole answer counts as written
        after it has read them.
        """
        sources = join_all(tool_source(name, True) for name in hosted)
        self.conversation_sources = sorted({*self.conversation_sources, *sources})

    def first_writes(self, state: JsonObject) -> list[Write]:
        """Return the writes of the run's initial state: the agent file's, and the parent run's, key by key (R8.2)."""
        received: dict[str, Sources] = {}
        for reference, names in self._received:
            if reference.kind == "state" and reference.path and str(reference.path[0]) in state:
                key = str(reference.path[0])
                received[key] = join(received.get(key, NOWHERE), names)
        own = {key: value for key, value in state.items() if key not in received}
        writes = [Write(path=(), value=own, sources=AGENT)] if own else []
        return [*writes, *(Write(path=(key,), value=state[key], sources=names) for key, names in received.items())]

    def left(
        self, state: State, progress: RunProgress, reported: Iterable[Sources], answer: Sources
    ) -> dict[str, list[str]]:
        """Return the sources of the values with which a session continues, by reference.

        `reported` are the sources of the run's calls that the session reports. `answer` are the sources of the run's
        output, which the session passes on unchanged.
        """
        keys = {str(Reference("state", (key,))): state.labels.at((key,)) for key in state.snapshot()}
        seen = (untrusted_sources(each) for each in reported if not self.hides(each))
        shown = join_all([frozenset(progress.told), self.read_by_model, untrusted_sources(answer), *seen])
        return {text: sorted(each) for text, each in {**keys, f"†{CONVERSATION}": shown}.items() if each}

    def untrusted_read(self, progress: RunProgress, called: Iterable[Sources]) -> list[str]:
        """Return the untrusted sources that the model or its calls have read. The message of the run's failure may hold
        their values.
        """
        return sorted(untrusted_sources(join_all([frozenset(progress.told), self.read_by_model, *called])))

    def hides(self, sources: Sources) -> bool:
        """Whether the model sees the shape of values of these sources in place of the values (R15.4)."""
        if self._show == "values":
            return False
        others = untrusted_sources(sources)
        if isinstance(self._show, str):
            return bool(others)
        return any(self._show.get(rule_name(name).partition(":")[2]) == "shape" for name in others)

    def begin(self, state: State, progress: RunProgress) -> None:
        """Begin a Request. Its model may follow untrusted content of its prompt (R15.3)."""
        held = [state.labels, *self.data.values()]
        seen = join_all(self._seen(labels) for labels in held if untrusted_sources(labels.whole))
        self.read_by_model = join(frozenset(progress.told), seen)

    def _seen(self, labels: Labels) -> Sources:
        return join_all(untrusted_sources(own) for _, own in labels.parts() if not self.hides(own))

    def known(self, number: int, progress: RunProgress, vouched: Callable[[Reference, Json], bool]) -> KnownSources:
        """Return the known sources for the plan of a Request; `vouched` returns whether a person endorsed a value.

        A call that a trusted Request planned, and that did not run, stays trusted.
        """
        if not number:
            return KnownSources(self.data, lambda _: self._planned, vouched)
        wrote = join(MODEL, self.read_by_model)
        planned = list(progress.planned) if self.read_by_model else []

        def written(call: Json) -> Sources:
            if planned and isinstance(call, dict) and (known := print_of(call)) in planned:
                planned.remove(known)
                return MODEL
            return wrote

        return KnownSources(self.data, written, vouched)

    def note(self, plan: Plan, progress: RunProgress, *, turns: bool) -> None:
        """End a Request: record its sources in later prompts. With `turns`, all results are in later prompts."""
        shown_sources = set(progress.told)
        for call in plan.every_call():
            if call.spec.tool is not None and call.state.writes and self.hides(call.state.sources):
                self.note_type(call.id, call.spec.tool)
            shown_sources |= untrusted_sources(call.inputs.origins.written)
            shown = (turns and call.state.status == "done") or not call.state.writes
            for sources in (
                call.state.sources if shown else NOWHERE,
                call.inputs.origins.all if shows_values(call) else NOWHERE,
            ):
                shown_sources |= NOWHERE if self.hides(sources) else untrusted_sources(sources)
        progress.told = sorted(shown_sources)
        clean = [
            call.spec.raw
            for call in plan.calls
            if not untrusted_sources(call.inputs.origins.written)
            and call.state.status != "done"
            and call.id not in self._noted
        ]
        self._noted = {call.id for call in plan.calls} if not plan.settled else set()
        made = (
            {print_of(call.spec.raw) for call in plan.calls if call.state.status == "done"}
            if progress.planned
            else set()
        )
        # No more are kept, so the others of thousands of calls need no digest (R18.5).
        newest = clean if made else clean[-KEPT_PLANNED:]
        planned = [*progress.planned, *map(print_of, newest)]
        progress.planned = [each for each in planned if each not in made][-KEPT_PLANNED:]

    def note_type(self, call_id: str, tool: Tool | None) -> None:
        """Record the type of the call's result, as its tool declares it."""
        schema = self._type_of(tool)
        if schema is not None:
            self._types[call_id] = schema

    def _type_of(self, tool: Tool | None) -> JsonObject | None:
        """Return the known schema of a tool's results: its own, or its delegate's."""
        if tool is None or tool.output is not None or tool.delegate is None:
            return None if tool is None else tool.output
        schema = self._delegates.get(tool.delegate, {}).get("schema")
        return output_schema(schema) if isinstance(schema, dict) else None

    def restore(self, state: State, calls: Iterable[CallView], tools: Mapping[str, Tool]) -> None:
        """Continue from the state and the calls of an earlier execution."""
        self.state = state
        for call in calls if self.shows_shapes else ():
            self.note_type(call.id, tools.get(call.tool))

    def note_shown(self, sources: Sources, progress: RunProgress) -> None:
        """Record that a message to the model holds a value of these sources."""
        if not self.hides(sources):
            progress.told = sorted({*progress.told, *untrusted_sources(sources)})

    def of_output(
        self, output: Json, plan: Plan, state: State, *, below: bool, at_end: bool = True, of_call: bool
    ) -> Sources:
        """Return the sources of an output as it was written: the model's own, and the sources of its references.

        References are resolved at the plan's end or in the state. The caller needs the result only for a parent run, or
        for a model that may not read untrusted values. `of_call`: the output is a call's result, by `task_complete`.
        """
        if output is None or not (below or untrusted_sources(state.labels.whole)):
            return NOWHERE
        completing = (call for call in reversed(plan.calls) if of_call and call.state.result is output)
        if (call := next(completing, None)) is not None:
            return call.state.sources
        template, _ = parse_template({"output": output})

        def found(reference: Reference) -> Json | Missing:
            if reference.kind != "state":
                return None
            return plan.read_at_end(reference) if at_end else get(state.snapshot(), reference.path)

        def of(reference: Reference) -> Sources:
            bound = at_end and reference.kind == "state"
            return plan.sources_at_end(reference) if bound else self._of(state)(reference)

        def absent(reference: Reference) -> Sources:
            return plan.absent_at_end(reference) if at_end and reference.kind == "state" else NOWHERE

        try:
            taken = join_all(taken_by(site.expression, found, of, absent) for site in template.sites)
        except StateError:  # the output is rejected; its error may contain any value of the state
            taken = state.labels.whole
        return join(taken, join(MODEL, self.read_by_model)) if template.written_out() else taken

    def _of(self, state: State) -> Callable[[Reference], Sources]:
        def of(reference: Reference) -> Sources:
            labels = state.labels if reference.kind == "state" else self.data.get(reference.kind)
            return NOWHERE if labels is None else labels.at(reference.path)

        return of

    def input_sources(
        self, call: Call, names: Iterable[Reference], sources: Callable[[Reference], Sources] | None
    ) -> dict[str, list[str]]:
        """Return the sources of a delegate's input, by the reference in its run: of its parameters, and of its scopes'
        data.
        """
        found_sources = {str(Reference("input", (name,))): each for name, each in call.inputs.origins.params.items()}
        for reference in names:
            if sources is None:
                break
            kind = "parent" if reference.kind == "input" else reference.kind
            found = sources(reference)
            if (
                call.spec.instance is not None and reference.kind == "state"
            ):  # its own state has precedence over the shared state
                found = join(found, sources(Reference("state", (state_key(call.spec.instance), *reference.path))))
            found_sources[str(Reference(kind, reference.path))] = found
        return {text: sorted(each) for text, each in found_sources.items()}

    # Values that are shown as a shape (R15.4).

    @property
    def shows_shapes(self) -> bool:
        """Whether the model may be shown the shape of any value."""
        return self._show == "shape" or (not isinstance(self._show, str) and "shape" in self._show.values())

    def shown_start(self, state: JsonObject) -> JsonObject:
        """Return the initial state as the model sees it."""
        shown, _ = self.shown_state(State(self.first_writes(state)), tight=False)
        return shown

    def readable_state(self, state: State) -> JsonObject:
        """Return the whole state, with the shape of each value that the model may not read."""
        value = state.snapshot()
        return self._shaped(state)(value) if self.shows_shapes and untrusted_sources(state.labels.whole) else value

    def shown_state(self, state: State, *, tight: bool, most: int = MAX_STATE_SHOWN) -> tuple[JsonObject, bool]:
        """Return the state as the model sees it, and whether every large key is cut. Large keys are cut if `tight`, or if
        the state would have more than `most` characters.
        """
        shaped = self._shaped(state) if self.shows_shapes and untrusted_sources(state.labels.whole) else None
        shown = None if tight else state.shown(most=most, shaped=shaped)
        return (state.beginnings(most=most, shaped=shaped), True) if shown is None else (shown, False)

    def _shaped(self, state: State) -> Callable[[JsonObject], JsonObject]:
        types = {tuple(map(str, write.path)): self._types.get(write.call) for write in state.writes}

        def shaped(value: JsonObject) -> JsonObject:
            found: JsonObject = state.labels.shaped(
                value, self.hides, lambda part, path: shape_of(part, types.get(path)), shown_key
            )
            return found

        return shaped

    def shown_data(self, item: MergedMessages) -> Json:
        """Return data that the run received, as the model sees it."""
        labels = self.data.get(item.kind if item.instance is None else kind_of(item.kind, item.instance))
        if labels is None:
            return item.value
        shown: Json = labels.shaped(item.value, self.hides, lambda part, _: shape_of(part), shown_key)
        return shown

    def shown_result(self, call: Call) -> tuple[bool, Json]:
        """Return whether a result is hidden, and the value that the model sees."""
        if not self.hides(call.state.sources):
            return False, call.state.result
        return True, shape_of(call.state.result, self._type_of(call.spec.tool))

    def shown_error(self, call: Call, error: CallError) -> JsonObject:
        """Return an error as the model sees it. Its message may hold the call's parameters, or untrusted answers."""
        known = join(call.state.sources, call.inputs.origins.all)
        if self.hides(known) or (self.shows_shapes and self.hides(join(known, self._touched(call)))):
            named = shown_key(error.code, 0) == error.code  # a tool may give any text as its code
            return {"code": error.code if named else "error", "message": HIDDEN}
        return error.as_json()

    def _touched(self, call: Call) -> Sources:
        """Return the sources of all values that a call may have read, with any outcome.

        Conditions read too, and a write reads the present value of its path.
        """
        read, paths = looked_at(call)
        found = join_all(self.data[each.kind].at(each.path) for each in read if each.kind in self.data)
        paths += [each.path for each in read if each.kind == "state"]
        if call.spec.instance is not None:
            paths += [scope_path(path, call.spec.instance) for path in paths]
        return join(
            found,
            join_all(each.sources for each in self.state.writes if any(overlaps(each.path, path) for path in paths)),
        )

    def recorded(self, call: Call) -> tuple[Json, JsonObject]:
        """Return a call's result for a session's transcript, and the shapes that replace its hidden values."""
        hidden, result = self.shown_result(call)
        shapes: JsonObject = {"shown": preview(result, 160)} if hidden else {}
        origins = call.inputs.origins.params
        if any(map(self.hides, origins.values())):
            shapes["params"] = {
                name: shape_of(value) if self.hides(origins.get(name, NOWHERE)) else value
                for name, value in call.inputs.params.items()
            }
        if call.state.error is not None and (error := self.shown_error(call, call.state.error))["message"] == HIDDEN:
            shapes["error"] = error
        return result, shapes

    def shown_problems(self, problems: list[str], sources: Sources) -> list[str]:
        """Return the problems of an output of these sources as the model sees them. Their texts may hold the output's
        values.
        """
        return [HIDDEN] if problems and self.hides(sources) else problems

    def shown_feedback(self, messages: Iterable[JsonObject], plan: Plan) -> list[JsonObject]:
        """Return decisions as the model sees them: each call in its present state, and untrusted parts of an edit as
        shapes.
        """
        calls = {call.id: call for call in plan.every_call()}
        return [self._shown_edit(_as_it_stands(message, calls), plan) for message in messages]

    def _shown_edit(self, message: JsonObject, plan: Plan) -> JsonObject:
        before, after = message.get("before"), message.get("after")
        call = next(
            (call for call in plan.every_call() if call.approval is not None and call.inputs.params is after), None
        )
        if not (self.shows_shapes and isinstance(before, dict) and isinstance(after, dict)) or call is None:
            return message
        origins = call.inputs.origins.params
        kept = {
            name: shape_of(value) if self.hides(origins.get(name, NOWHERE)) else value for name, value in after.items()
        }
        return {**message, "before": shape_of(before), "after": kept}


def _as_it_stands(message: JsonObject, calls: Mapping[str, Call]) -> JsonObject:
    """Return a decision with the present state of its call, which may have changed since the decision (R7.5)."""
    about = message["call"]
    call = calls.get(str(about.get("_id"))) if isinstance(about, dict) else None
    return message if call is None else {**message, "call": call.as_plan_entry()}


def scope_reference(scope: str) -> Reference | None:
    """Return the reference of the data that a scope gives; `None`: it gives none.

    A tool with a scope that cannot be read is refused, but a run of 0.2.0 may have recorded one.
    """
    with suppress(ReferenceSyntaxError):
        return None if gives_tools(scope) else parse_scope(scope)
    return None


def references_of(scopes: Sequence[str], state: Json) -> list[Reference]:
    """Return the references that scopes name; for the whole state, one for each key."""
    found: list[Reference] = []
    for reference in filter(None, map(scope_reference, scopes)):
        if reference == Reference("state"):
            found += [Reference("state", (key,)) for key in (state if isinstance(state, dict) else ())]
        else:
            found.append(reference)
    return found
