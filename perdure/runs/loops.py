"""Loops over delegates: the input, the state and the result of their workflow."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Final, Literal

from pydantic import Field

from perdure.approvals.policy import Ask, Flow, Guard, PlanApproval, ToolOwner
from perdure.errors import CallError
from perdure.hooks.events import RunOwner
from perdure.models.usage import RunUsage
from perdure.plan import (
    DEFAULT_ITERATIONS,
    DEFAULT_PARALLEL,
    EACH,
    LOOP_DONE,
    LOOP_FAILED,
    LOOP_RESULTS,
    OWN_TOOLS,
    SHOWN_FAILURES,
    Call,
    Failed,
    LoopForm,
    Returned,
    exclusive_groups,
    outside_state,
)
from perdure.rules import Rule, RuleRecord
from perdure.runs.budget import ExpectedUsage
from perdure.runs.limits import Budget
from perdure.runs.notifications import ApprovalRoutes
from perdure.runs.shared_budgets import SharedBudget
from perdure.runs.standing_approvals import StandingClaim
from perdure.tools.tool import Tool
from perdure.values.json import Json, JsonObject, Packed, WireModel, shorten
from perdure.values.limits import MAX_INSIDE, MAX_PARALLEL, MAX_PAYLOAD, MAX_ROUNDS, RESULT_TOO_LARGE, bytes_text
from perdure.values.provenance import NOWHERE, Labels, join_all, untrusted_sources
from perdure.values.references import Path, parse_output_path, show
from perdure.values.sizes import Sizes, clip_text

PART_DEADLINE: Final = 30 * 24 * 3600.0
"""Seconds that a part may work. A loop has no deadline of its own, and each of its calls has its tool's."""
ITEMS: Final = "_loop_items"
"""The kind under which a part reads its items."""
WRITTEN: Final = "†plan"
"""Reference that stands for the authors of the call, where a part receives the sources of its input."""
_LEFT_OUT: Final = ("_if", "_after", "_instance", "_outputMethod")


def part_document(
    call: Call,
    loop: LoopForm,
    tools: Mapping[str, Tool],
    base: Mapping[str, Json],
    guard: Guard,
    kept: JsonObject,
) -> JsonObject:
    """Return the agent of all parts, without its plan: the call's tools, the data that the call reads, and the run's
    policy. `kept`: the keys of the run's config that apply to the parts (R16.1).
    """
    used = [each.spec.tool for form in loop.forms for each in form.written() if each.spec.tool is not None]
    names = dict.fromkeys(tool.name for tool in used if tool.name not in OWN_TOOLS)
    context: list[JsonObject] = [
        {"type": "tool", "tool": name if tools[name].registered else tools[name].definition()} for name in names
    ]
    context.append({"type": "state", "state": outside_state(call).snapshot()})
    context += [{"type": "data", "kind": kind, "data": base[kind]} for kind in _kinds(call) if kind in base]
    config = {**kept, "start": "plan", "approval": guard.base.as_change(), "deadline": PART_DEADLINE}
    if "parallel" in kept:
        config["parallel"] = min(kept["parallel"], MAX_INSIDE)
    return {"name": f"{call.spec.tool_name} {call.id}", "config": config, "context": context}


def _kinds(call: Call) -> list[str]:
    """Return the kinds outside the loop that the call reads, without the state."""
    read = {ref.kind for template in (call.spec.template, call.spec.soft) for ref in template.references()}
    return sorted(read - {"state"})


def part_remembered(guard: Guard, call: Call, sources: Mapping[str, list[str]]) -> list[str]:
    """Return the remembered tools for the parts. `sources`: the sources of the parts' input.

    Nobody has seen untrusted values in the calls of the parts, so with such values nothing is remembered.
    """
    clean = not untrusted_sources(join_all(map(frozenset, sources.values()))) and not any(
        map(_brings_others_in, call.written())
    )
    return sorted(guard.remembered) if clean else []


def _brings_others_in(call: Call) -> bool:
    """Whether the call's result may be untrusted. A delegate's run reports that only at its end."""
    return call.spec.tool is not None and (call.spec.tool.others_write or call.spec.tool.delegate is not None)


def part_call(call: Call, loop: LoopForm) -> JsonObject:
    """Return the call as all parts make it, without the items."""
    own = {key: value for key, value in call.spec.raw.items() if key not in _LEFT_OUT}
    by_item = {"_if": call.spec.raw["_if"]} if "_if" in call.spec.raw and not call.spec.has_condition else {}
    parallel = min(loop.parallel, MAX_INSIDE)
    return {**own, **by_item, "_parallel": parallel, "_outputPath": show((LOOP_RESULTS,))}


def most_items_at_once(call: Call, loop: LoopForm, parallel: int | None) -> int:
    """Return the most items of all parts at a time, so that the parts together keep to the run's `parallel`, and to
    exclusive tools (R5.12).
    """
    if exclusive_groups(call.written()):  # one part at a time: inside it, its own slots keep exclusive calls apart
        return min(loop.parallel, MAX_INSIDE)
    return loop.parallel if parallel is None else min(loop.parallel, MAX_INSIDE * max(1, parallel // MAX_INSIDE))


def part_sources(call: Call, known: Mapping[str, Labels]) -> dict[str, list[str]]:
    """Return the sources of the parts' input, by the reference in the part; `known` are labels by kind (R15.1)."""
    found = {str(reference): sources for reference, sources in call.inputs.outside_sources.items()}
    found |= {f"†{kind}": known[kind].whole for kind in _kinds(call) if kind in known}
    found |= {f"†{ITEMS}": call.inputs.origins.params.get(EACH, NOWHERE), WRITTEN: call.inputs.origins.written}
    return {text: sorted(sources) for text, sources in found.items()}


def part_plan(call: JsonObject, lists: list[str], items: list[Json], first: int) -> list[JsonObject]:
    """Return the messages that one part receives beside the agent: its items, and its plan."""
    made = {**call, "_each": f"†{ITEMS}", "_from": first}
    output = {
        "results": show((LOOP_RESULTS,)),
        "failed": show((LOOP_FAILED,)),
        "done": show((LOOP_DONE,)),
        "lists": lists,
    }
    data = {"type": "data", "kind": ITEMS, "data": items}
    return [data, {"type": "plan", "plan": [made], "output": output}]


LOOP_WORKFLOW: Final = "Loop"
UNTIL_ERRORS_PATCH: Final = "until-errors"
"""Marker of a loop whose `_until` cannot be evaluated: its error has the sources of the output. Before, the workflow failed."""
KEPT_FAILURES: Final = 100
"""Failed iterations that are reported with their messages."""
_MESSAGE: Final = 500
"""Bytes of such a message as JSON."""
_CODE: Final = 45
"""Bytes of an error's code as JSON."""
_SLOT: Final = 80
"""Bytes that each iteration has: for `null`, or for its index and the code of its error."""
_FRAME: Final = 2 * KEPT_FAILURES * (_MESSAGE + 100) + 20_000
"""Bytes kept free for failures and the other fields of a loop's result."""


def most_items(max_payload: int) -> int:
    """Return the most items that a loop may have, so that each has room for its error at least (R18.3)."""
    return (max_payload - _FRAME) // _SLOT


class IterationError(WireModel):
    """The error of one failed iteration; other iterations are kept (R8.5)."""

    index: int
    code: str
    message: str


class LoopState(WireModel):
    """The progress of a loop, from which a new execution continues (R8.7)."""

    done: int = Field(default=0, ge=0)
    """Iterations that ended."""
    next: int = Field(default=0, ge=0)
    """Index of the first iteration that has not started."""
    results: list[Json] = Field(default_factory=list)
    """Results in item order; for a failed iteration `{"error": {"index", "code", "message"}}`. Until-loops keep only
    the last result.
    """
    size: int = 0
    """Bytes of the results."""
    failed: list[IterationError] = Field(default_factory=list)
    """The first `KEPT_FAILURES`."""
    failures: int = 0
    lists: list[list[Json]] = Field(default_factory=list)
    """Writes of a body: a list for each path, in the form of `results`."""
    well: int = 0
    """Runs of the delegate that returned, or calls of a plain tool or a body that succeeded."""
    usage: RunUsage = Field(default_factory=RunUsage)
    expected: ExpectedUsage = Field(default_factory=ExpectedUsage)
    """Estimated usage of an iteration (R18.7)."""
    sources: list[str] = Field(default_factory=list)
    """Sources of the results, joined (R15.1)."""
    sent: list[str] = Field(default_factory=list)
    """Digests of texts that message tools have sent (R10.16)."""
    satisfied: bool = False
    """Whether the condition of an until-loop is true."""
    rule_record: RuleRecord | None = Field(default=None, exclude_if=operator.not_)
    """The record for the rules of the run above (R23.1)."""
    changed: bool = Field(default=False, exclude_if=operator.not_)
    """Whether a decision has changed a call of an iteration (R23.3)."""

    def fail(self, index: int, code: str, message: str) -> JsonObject:
        """Record that an iteration failed; return the value in place of its result."""
        self.failures += 1
        error = IterationError(index=index, code=clip_text(code, _CODE), message=clip_text(message, _MESSAGE))
        if len(self.failed) < KEPT_FAILURES:
            self.failed.append(error)
        # The index and the code are always kept. The message is kept if thousands of errors leave room.
        return {"error": error.as_json() if self.failures <= KEPT_FAILURES else {"index": index, "code": error.code}}


class LoopInput(WireModel):
    """The input of the workflow of a loop (`LOOP_WORKFLOW`)."""

    kind: Literal["each", "until"]
    agent: JsonObject
    """The delegate's agent file, with its scopes."""
    params: JsonObject = Field(default_factory=dict)
    call: JsonObject | None = None
    """Call that each part of the items makes, in a loop over a plain tool or with a body (R16.1)."""
    lists: list[str] = Field(default_factory=list)
    """Paths that the loop's body writes."""
    items: list[Json] = Field(default_factory=list)
    parallel: int = Field(default=DEFAULT_PARALLEL, ge=1, le=MAX_PARALLEL)
    until: Json = ""
    max: int = Field(default=DEFAULT_ITERATIONS, ge=1, le=MAX_ROUNDS)
    max_payload: int = MAX_PAYLOAD
    title: str = ""
    """The call in words, for summaries."""
    approval: JsonObject = Field(default_factory=dict)
    floor: Ask = "never"
    floor_flows: list[Flow] = Field(default_factory=list)
    rules: list[Rule] = Field(default_factory=list, exclude_if=operator.not_)
    """The rules of the run above (R23.1)."""
    unlent_rules: list[str] = Field(default_factory=list, exclude_if=operator.not_)
    """Keys of rules whose calls the run above has not left to the iterations."""
    budgets: list[SharedBudget] = Field(default_factory=list, exclude_if=operator.not_)
    """The budgets of the run above that many runs share (R24.8)."""
    givers: list[ToolOwner] = Field(default_factory=list)
    remembered: list[str] = Field(default_factory=list, exclude_if=operator.not_)
    """Tools of the parts whose approval a person wants remembered (R7.7)."""
    lineage: list[str] = Field(default_factory=list)
    delegates: dict[str, JsonObject] = Field(default_factory=dict)
    prepared: Packed | None = None
    """Preparation for all iterations, recorded once; `None`: each records its own."""
    budget: Budget = Field(default_factory=Budget)
    """Remaining budget of the parent run for all iterations together; its deadline applies to each of them."""
    unreserved: Budget = Field(default_factory=Budget, exclude_if=lambda budget: not budget.limited)
    """The parent run's unreserved tokens and dollars at the loop's start, for MCP servers that ask the model. Empty in a
    loop with delegates, which reserves a share.
    """
    free: int = MAX_PAYLOAD
    """Bytes that all results together may have without a claim (R18.4)."""
    sources: dict[str, list[str]] = Field(default_factory=dict)
    """Sources of the input of all iterations, by reference (R15.1)."""
    whose: RunOwner = Field(default_factory=RunOwner)
    routes_above: ApprovalRoutes | None = None
    """Routes for approval requests of iterations whose agent file names none (R19.5)."""
    keeps_version: bool = False
    """Whether the loop keeps its worker's version until it ends, as the run does."""
    said: str = Field(default="", exclude_if=operator.not_)
    requesters: list[str] = Field(default_factory=list, exclude_if=operator.not_)
    """People, besides the sender, whose messages the run has (R24.6)."""
    evaluated: bool = Field(default=False, exclude_if=operator.not_)
    """Whether the run belongs to an evaluation (R22.3)."""
    standing: StandingClaim | None = Field(default=None, exclude_if=operator.not_)
    """The standing approvals that hold for the parts (R23.3)."""
    plan_approval: PlanApproval | None = Field(default=None, exclude_if=operator.not_)
    """The approval of the whole plan (R7.6)."""
    asks: bool = False
    """Whether large values of this input stay with the parent run, which answers queries for them (R18.2)."""
    state: LoopState = Field(default_factory=LoopState)

    @property
    def count(self) -> int:
        """The most iterations, or parts."""
        if self.call is not None:
            return -(-len(self.items) // MAX_INSIDE)
        return len(self.items) if self.kind == "each" else self.max

    @property
    def concurrency(self) -> int:
        """The number of iterations at a time: one if they count together for a rule."""
        if any(rule.has_record and rule.key not in self.unlent_rules for rule in self.rules):
            return 1
        if self.call is not None:
            return -(-self.parallel // MAX_INSIDE)
        return self.parallel if self.kind == "each" else 1

    @property
    def part_budget(self) -> Budget:
        """Budget of one part: an equal share of `unreserved` for each part that runs at once."""
        left, count = self.unreserved.left(self.state.usage), self.concurrency
        return Budget(
            tokens=None if left.tokens is None else left.tokens // count,
            cost=None if left.cost is None else left.cost / count,
        )

    def iteration(self, index: int) -> tuple[JsonObject, JsonObject]:
        """Return the agent and the input of one iteration: the call's parameters, `index`, and the iteration's own
        values.
        """
        if self.call is not None:
            first = index * MAX_INSIDE
            messages = part_plan(self.call, self.lists, self.items[first : first + MAX_INSIDE], first)
            return {**self.agent, "context": [*self.agent["context"], *messages]}, {}
        if self.kind == "each":
            return self.agent, {**self.params, "item": self.items[index], "index": index}
        previous = self.state.results[-1] if self.state.results else None
        state = {"type": "state", "state": {"previous": previous}}
        return {**self.agent, "context": [*self.agent.get("context", []), state]}, {**self.params, "index": index}

    def sources_of(self) -> dict[str, list[str]]:
        """Return the sources of one iteration's input: an item has those of the items, a previous output has its own."""
        item = {"†input.item": self.sources["†input._each"]} if "†input._each" in self.sources else {}
        return self.sources | item | ({"†state.previous": self.state.sources} if self.kind == "until" else {})

    def make_room(self) -> None:
        """Make a place for each item's result."""
        for values in (self.state.results, *self.state.lists):
            values += [None] * (len(self.items) - len(values))
        self.state.lists += [[None] * len(self.items) for _ in self.lists[len(self.state.lists) :]]

    def keep_part(self, index: int, value: JsonObject, sizes: Sizes) -> None:
        """Keep a part's result; a value without room beside the others becomes its item's error (R18.4)."""
        state, first = self.state, index * MAX_INSIDE
        state.done += 1
        state.well += value["done"]
        pairs = [(state.results, value["results"]), *zip(state.lists, value["lists"], strict=True)]
        left = (len(self.items) - first) * len(pairs)
        for failed in value["failed"]:
            state.fail(failed["index"], failed["code"], failed["message"])
        for number in range(first, min(first + MAX_INSIDE, len(self.items))):
            for kept, values in pairs:
                left -= 1
                each, size = values[number - first], sizes.of(values[number - first]) + 1
                room = self.max_payload - _FRAME - state.size - _SLOT * left
                if size > room:
                    message = (
                        f"its result has {bytes_text(size)}, and the loop's results have room for {max(room, 0):,} more"
                    )
                    each, size = state.fail(number, RESULT_TOO_LARGE, message), _SLOT
                kept[number] = each
                state.size += size

    def keep(self, index: int, value: Json, size: int) -> None:
        """Keep an iteration's result; one without room beside the others becomes that iteration's error (R18.4)."""
        state = self.state
        state.well += 1
        # Later iterations keep room for their errors; ended ones use only the room of their results.
        others = 0 if self.kind == "until" else state.size + _SLOT * (len(self.items) - state.done - 1)
        room = self.max_payload - _FRAME - others - 1
        if size > room:
            message = f"its result has {bytes_text(size)}, and the loop's results have room for {max(room, 0):,} more"
            self.keep_error(index, RESULT_TOO_LARGE, message)
        else:
            self._put(index, value, size + 1)

    def keep_error(self, index: int, code: str, message: str) -> None:
        """Record that an iteration failed or did not run. An until-loop ends with it: the next iteration would have no
        previous output.
        """
        if self.call is not None:
            self.state.done += 1
            for number in range(index * MAX_INSIDE, min((index + 1) * MAX_INSIDE, len(self.items))):
                error = self.state.fail(number, code, message)
                for values in (self.state.results, *self.state.lists):
                    values[number] = error
                self.state.size += _SLOT * (1 + len(self.state.lists))
            return
        self._put(index, self.state.fail(index, code, message), _SLOT)
        self.state.satisfied = self.kind == "until"

    def _put(self, index: int, value: Json, size: int) -> None:
        state = self.state
        state.done += 1
        if self.kind == "until":
            state.results, state.size = [value], size
        else:
            state.results[index] = value
            state.size += size

    def progress(self) -> str:
        """Return the progress for the current details: `312 of 1000, 2 failed`."""
        failed = f", {self.state.failures} failed" if self.state.failures else ""
        if self.call is not None:
            return f"{min(self.state.done * MAX_INSIDE, len(self.items))} of {len(self.items)}{failed}"
        return f"{self.state.done} of {'at most ' if self.kind == 'until' else ''}{self.count}{failed}"

    def outcome(self, state: LoopState) -> tuple[Returned | Failed, list[CallError]]:
        """Return the outcome of a loop's ended call, and the errors that the model sees beside it (R8.5, R8.6)."""
        sources = frozenset(state.sources)
        errors = [
            CallError("iteration_failed", f"iteration {e.index} failed: {e.code}: {e.message}") for e in state.failed
        ]
        if self.kind == "until":
            if errors:
                return Failed(errors[0], sources), []
            if not state.satisfied:
                last = shorten(state.results[-1] if state.results else None, 200)
                message = f"{self.until} did not come true in {state.next} iterations; the last output was {last}"
                return Failed(CallError("max_iterations", message), sources), []
            return Returned(state.results[-1], sources=sources), []
        count = state.failures
        if errors and (count == len(self.items) if self.call is None else not state.well):
            message = f"all {count} iterations failed; the first: {errors[0].message}"
            return Failed(CallError("iterations_failed", message), sources), []
        if count > SHOWN_FAILURES:
            more = f"{count - SHOWN_FAILURES} more iterations failed; see the results"
            errors[SHOWN_FAILURES:] = [CallError("iteration_failed", more)]
        parts = dict(zip(map(_path, self.lists), state.lists, strict=True)) if self.call is not None else None
        return Returned(state.results, parts=parts, sources=sources), errors


def _path(text: str) -> Path:
    return parse_output_path(text)[0][0]
