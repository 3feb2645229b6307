"""A run between its Requests, and its snapshot for continue-as-new.

Plain data and rules; the workflow drives it. One Request after the other: `begin_request`, a `Plan` from `open_plan`, and
`close_request` when the plan has settled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perdure.approvals.queue import ApprovalQueue
from perdure.hooks.events import RunOwner
from perdure.models.dialects.registry import DIALECTS
from perdure.models.provider_extras import server_of
from perdure.models.requests import ModelWait, RequestContext, RequestInput, RequestResult, RequestView
from perdure.plan import Call, Plan
from perdure.runs._output import Outputs, ParsedText, reads_alike, whole_output
from perdure.runs.agent import Agent, CalledTool, Context, ModelChoice, Situation
from perdure.runs.budget import BudgetPool
from perdure.runs.context import (
    CUT,
    OVERTAKEN,
    Contexts,
    ModelTurns,
    error_message,
    has_cut,
    heed,
    not_well,
    note,
    plan_notes,
    request_problems,
    with_reasons,
)
from perdure.runs.event_journal import RunJournal, text_of, why_not
from perdure.runs.limits import REPEATS, Budget, Limit, StopReason, answer_print, asked_too_often, budget_of, is_stuck
from perdure.runs.provenance import RunProvenance
from perdure.runs.records import (
    RECENT,
    CallTallies,
    KeptValues,
    PastRequests,
    RunProgress,
    RunSnapshot,
    added,
    count_answer,
    plan_reads,
    plan_writes,
    record,
    sent_by,
    weight,
)
from perdure.runs.rules import OUTPUT_BINDS_AT_END
from perdure.runs.wire import PreparedWorker
from perdure.tools.engine import free_name
from perdure.tools.tool import TASK_COMPLETE
from perdure.values.json import Json, JsonObject, shorten
from perdure.values.limits import MAX_CARRIED, MAX_LAST_MESSAGES, MAX_REFUSALS
from perdure.values.provenance import NOWHERE, SourceTable
from perdure.values.schemas import Schema
from perdure.values.sizes import Sizes
from perdure.values.state import State


class Run(CallTallies):
    """The state of one run. Raises `InputError` or `AgentError` when the agent or the input cannot be used (R2.3)."""

    def __init__(
        self,
        agent: Agent,
        context: Context,
        prepared: PreparedWorker,
        approval_queue: ApprovalQueue | None = None,
        *,
        budget: Budget | None = None,
        sources: Mapping[str, list[str]] | None = None,
        notes: RunJournal | None = None,
    ) -> None:
        self.agent = agent
        self.notes = notes or RunJournal()
        """Journal of the run's events (R10.14)."""
        self.context = context
        self.prepared = prepared
        self.lineage, self.whose = [agent.name], RunOwner()
        """The agents above, outermost first, and this one."""
        self.tools = {tool.name: tool for tool in prepared.tools}
        self.approval_queue = approval_queue or ApprovalQueue()
        """Queue of requests that wait for a person."""
        state = context.state
        self.sizes = Sizes()
        """Bytes of the run's values, each measured once (R18.1)."""
        self.notes.sizes = self.sizes
        self.reading = RunProvenance(context, sources or {}, agent.config.show, prepared.delegates)
        """Provenance of the run's data, and of what its model has read (section 15)."""
        self.reading.instruct(prepared.prompt)
        self.state = self.reading.state = State(self.reading.first_writes(context.initial_state), self.sizes)
        self.progress = RunProgress(told=self.reading.told, must_call=self._offered(agent.config.must_call))
        self.shares = BudgetPool(budget_of(agent.config), self.progress.expected, share=budget)
        """Shares of the budget that delegates have reserved while they run at once (R18.7)."""
        self.limit: Limit | None = None
        """Reason why the coming Request is the last (R9.5)."""
        self.wait: ModelWait | None = None
        """Reason for the wait while the model's provider is away (R20.5)."""
        self.plan: Plan | None = None
        self.past = PastRequests()
        self.past_bytes = 0  # what its calls weigh
        self.records = self.reasons = False  # a session keeps what its calls give, tells what its model thinks
        self.thought = ""
        self.kept = KeptValues()
        """Parameters and results of this execution's calls."""
        self.restored_at = 0
        """Number of the last Request of the execution that this one went on from."""
        self.output: Json = None
        self.output_sources, self.table = NOWHERE, SourceTable()
        self.stop_reason: StopReason | None = None
        self._dialect = DIALECTS[agent.config.dialect]
        self._state_schema = None if state.data_schema is None else Schema(state.data_schema)
        self._outputs = Outputs(agent.output_schema)
        self._only_output, self._done = False, 0  # asked for an output alone: it counts whatever is beside it
        self._recent: list[Call] = []
        self._views = {}
        self._asked: tuple[int, RequestContext | None] = (0, None)
        self._telling = ModelTurns(self.sizes, self.reading, context.call_ids, turns=self._dialect.keeps_turns)
        self._contexts = Contexts(agent, context, prepared, self.sizes, self.reading)

    @property
    def final(self) -> bool:
        """Whether the coming Request only wants an output, and offers no tools."""
        return self.limit is not None or self.progress.wants != "plan"

    def situation(self) -> Situation:
        """Return the facts from which the next Request's model is chosen (R9.4)."""
        progress = self.progress
        progress.number += 1
        heed(self.progress)
        if self.limit is None and is_stuck(progress.answers, self.agent.config.stuck_after):
            progress.told_to_vary = progress.number
            progress.messages.append(note(REPEATS.format(count=self.agent.config.stuck_after)))
        return Situation(
            models=self.prepared.models,
            number=progress.number,
            after_error=progress.after_error,
            final=self.final,
            usage=progress.usage,
            called=progress.called,
        )

    def begin_request(self, choice: ModelChoice) -> RequestInput:
        """Begin the next Request, to this model (R6.1)."""
        number = self.progress.number
        self._offer_recall()
        self.reading.begin(self.state, self.progress)
        heed(self.progress)
        self.notes.taken(self.progress.inbox, number)
        revision = self._telling.begin(number, self.progress, self.plan, self.tools)
        context = self._contexts.make(
            self._telling.tools(self.tools),
            self.progress,
            self.state,
            self.limit,
            final=self.final,
            server=server_of(choice.model),
            revision=revision,
        )
        sampling = self.agent.config.sampling.of(choice.model, self.prepared.models)
        context.parameters = {**context.parameters, **sampling}
        self._asked = (number, context)
        view = RequestView(number=number, model=choice.model, reason=choice.reason, messages=len(context.messages))
        self.past.log.append(with_reasons(view, self.past.log, self.progress.messages))
        self.notes.asked(view)
        # A plan that is shown as a whole has to be whole: nothing of it is wanted before the answer's end (R7.6).
        stream = self.agent.config.stream and self.approval_queue.guard.policy.scope == "calls"
        return RequestInput(number=number, model=choice.model, reason=choice.reason, stream=stream)

    def _offer_recall(self) -> None:
        """Offer the tool `recall` from the first Request on that shows a cut value (R10.18)."""
        self.progress.has_cut = self.progress.has_cut or self.state.is_cut
        tool = self.prepared.recall
        if tool is None or not self.progress.has_cut:
            return
        if all(each.activity != tool.activity for each in self.tools.values()):
            name = free_name(tool.name, self.tools)
            self.tools[name] = tool.model_copy(update={"name": name})

    def ask_again(self, choice: ModelChoice, *, tight: bool = False) -> RequestInput:
        """Send the same Request to another model, or with less context, because the last attempt failed (R9.4, R9.7)."""
        self.past.log.pop()
        if tight:
            self.notes.compacted(choice.reason)
        self.progress.tight = self.progress.tight or tight
        return self.begin_request(choice)

    def check_limits(self, worked: float, *, coming: int, last_counts: bool = True) -> None:
        """Set `limit` if Request `coming` has to be the last; the run has worked for `worked` seconds (R9.5)."""
        progress = self.progress
        progress.worked = worked
        told = 0 < progress.told_to_vary == coming - 1
        self.limit = (
            self.limit
            or asked_too_often(
                self.agent.config, progress.answers, coming=coming - progress.cut, told=told, last_counts=last_counts
            )
            or self.shares.budget.late(worked)
            or self.shares.limit(progress.usage)
        )

    @property
    def asked_all(self) -> bool:
        """Whether the coming Request is one more than the run may make (R9.5)."""
        return self.progress.number - self.progress.cut > self.agent.config.max_requests

    def request_context(self, number: int) -> RequestContext:
        """Return the context of Request `number`, for as long as it is the last one begun."""
        asked, context = self._asked
        if context is None or asked != number:
            raise KeyError(f"Request {number} is not running; the last one begun is {asked}")
        return context

    def last_messages(self) -> list[JsonObject]:
        """Return the messages of the last Request begun: the newest that have at most `MAX_LAST_MESSAGES` bytes."""
        _, context = self._asked
        kept: list[JsonObject] = []
        room = MAX_LAST_MESSAGES
        for message in reversed([] if context is None else context.messages):
            room -= self.sizes.of(message)
            if room < 0:
                break
            kept.append(message)
        return kept[::-1]

    def open_plan(self, number: int) -> Plan:
        """Return the plan of a Request, now the running one: an empty plan, or the plan that goes on under the Request."""
        self._only_output = self.final
        self.approval_queue.new_plan = lambda: self._new_plan(number)
        if self.plan is None:
            self.plan = self._new_plan(number)
        else:
            known = self.reading.known(number, self.progress, self.approval_queue.vouched.stands)
            self.plan.begin(number, self._telling.tools(self.tools), known)
        return self.plan

    def _new_plan(self, number: int, *, dry_run: bool = False) -> Plan:
        config = self.agent.config
        return Plan(
            number,
            tools={} if self.final else self.tools,
            state=self.state.copy() if dry_run else self.state,
            data=self.context.values(),
            state_schema=self._state_schema,
            execution=config.execution,
            max_calls=config.max_calls,
            parallel=config.parallel,
            dry_run=dry_run,
            instances=self.context.instances,
            max_payload=self.prepared.max_payload,
            known=self.reading.known(number, self.progress, self.approval_queue.vouched.stands),
        )

    def close_request(
        self,
        plan: Plan,
        result: RequestResult,
        *,
        cut: bool = False,
        is_patched: Callable[[str], bool] = lambda _: True,
    ) -> bool:
        """Close a Request whose calls have all ended; return whether the run is over.

        Where its plan goes on under the next Request, only the ended calls are taken in (R10.5). `cut`: a message has
        ended the answer. `is_patched` returns whether this execution follows a rule that may be newer than its history.
        Of a run that is over see `output` and `stop_reason` (R6.1).
        """
        if self.limit is None:
            heed(self.progress)
        fresh = self._telling.fresh(plan)
        problems = request_problems(fresh, result, self.reading.shown_error)
        progress, wanted = self.progress, self.progress.wants
        progress.refusals = 0 if result.refusal is None else progress.refusals + 1
        progress.wants = "plan"
        progress.has_cut = progress.has_cut or has_cut(fresh, self.sizes, self.reading)
        self._telling.keep_results(progress, fresh)
        output, reason = self._written_output(plan, fresh, result)
        # A run of 0.1.0 has read the state as it stood, and gone on by that.
        alike = reason == "task_complete" or reads_alike(output, self.state.snapshot(), plan.read_at_end)
        at_end = alike or is_patched(OUTPUT_BINDS_AT_END)
        self.output_sources = self.reading.of_output(
            output, plan, self.state, below=len(self.lineage) > 1, at_end=at_end
        )
        uncalled = self._why_uncalled(fresh)
        held = None if output is None else self._why_held(plan, fresh)
        output, wrong = (None, []) if held else self._resolved(output, reason, plan if at_end else None)
        if uncalled is not None and held is None and (output is not None or progress.wants != "plan" or not fresh):
            output, wrong, progress.wants = None, [uncalled], "plan"
        if output is not None and not wrong and (breaks := self._outputs.problems(output)):
            wrong = [f"the output breaks its schema: {'; '.join(breaks[:5])}. It was {shorten(output, 300)}"]
        shown = self.reading.shown_problems(wrong, self.output_sources)
        problems += [error_message(None, {"code": "invalid_output", "message": each}) for each in shown]
        over = output is not None and not wrong
        if wrong or over:
            self.reading.tell(self.output_sources, progress)  # in an error's words, or as a draft
        if over and self._is_to_refine(wanted):
            progress.draft, progress.wants, over = output, "refined", False
        elif over:
            self._end(output, reason, result.thought)
        progress.cut += cut
        self.reading.note(plan, progress, turns=self._dialect.keeps_turns)
        told = [*self.reading.shown_feedback(self.approval_queue.feedback, plan), *problems]
        told += plan_notes(fresh, plan)
        told += [note(each) for each in ([CUT] if cut else []) + ([held] if held else [])]
        progress.messages += [*self._telling.turn(progress, plan, fresh, result, self.past.log), *told]
        if plan.settled:
            self._keep_past(plan)
            self.sizes.retain(self.carries())
        self.approval_queue.feedback.clear()
        progress.called = [
            CalledTool.of(call.spec.tool_name, call.spec.tool) for own in plan.own for call in own.written()
        ]
        progress.after_error = bool(problems) or any(call.state.status == "failed" for call in fresh)
        self._telling.note_plan(progress, plan)
        if plan.request:
            self.note_answer(result, cut=cut)
            self._note_said(result, held or next(iter(wrong), None), output, over=over)
            answer = [answer_print(result, [call.spec.raw for call in plan.own])][cut:]
            progress.answers = [*progress.answers, *answer][-self.agent.config.stuck_after :]
        return over or (wanted == "refined" and self.end_with_draft())

    @property
    def is_refused(self) -> bool:
        """Whether the model has refused once too often, or in the last Request (R20.2)."""
        refusals = self.progress.refusals
        return refusals >= MAX_REFUSALS or (refusals > 0 and self.limit is not None)

    def end_with_draft(self) -> bool:
        """End with the output that was to be refined, if there is one; return whether there was."""
        if (draft := self.progress.draft) is not None:
            self._end(draft, "output")
        return draft is not None

    def _end(self, output: Json, reason: StopReason, thought: str = "") -> None:
        self.output, self.progress.draft, self.thought = output, None, thought if self.reasons else ""
        self.stop_reason = reason if self.limit is None else self.limit.reason

    def _is_to_refine(self, wanted: str) -> bool:
        """Whether the smart model has to refine an output (R9.4)."""
        models = self.prepared.models
        fast = bool(self.past.log) and self.past.log[-1].model == models.fast != models.smart
        wants = self.agent.config.refine and wanted == "plan" and not self.reading.hides(self.output_sources)
        return wants and self.limit is None and fast and self.progress.number > 1

    def _resolved(self, output: Json, reason: StopReason, plan: Plan | None) -> tuple[Json, list[str]]:
        """Return an output with its references replaced, and their problems. They are read at the plan's end, or from
        the state.

        See R6.4.
        """
        if output is None or reason == "task_complete":
            return output, []
        data = {**self.context.values(), "state": self.state.snapshot()}
        at_end = None if plan is None else plan.read_at_end
        return whole_output(output, data, self.prepared.max_payload, self.sizes, at_end)

    def _why_uncalled(self, fresh: list[Call]) -> str | None:
        """Return why no output counts yet: the model has called none of the tools that it must call (R6.5).

        Where a decision in this Request set the tools, the Request's calls do not count: the model wrote them before
        it.
        """
        progress, told = self.progress, self.approval_queue.must_call
        if told is not None:
            progress.must_call, self.approval_queue.must_call = self._offered(told), None
        elif any(call.spec.tool_name in progress.must_call and call.state.status == "done" for call in fresh):
            progress.must_call = []
        if not progress.must_call or self.limit is not None:
            return None
        return f"no output counts before a call of {' or '.join(progress.must_call)}: make that call first"

    def _offered(self, names: list[str]) -> list[str]:
        return [name for name in names if name in self.tools]

    def gives_output(self, plan: Plan, result: RequestResult) -> bool:
        """Whether an answer holds an output in any form, so that no Request has to follow."""
        completed = any(call.spec.tool_name == TASK_COMPLETE and call.state.status == "done" for call in plan.own)
        return completed or self._says(result) is not None

    def _why_held(self, plan: Plan, fresh: list[Call]) -> str | None:
        """Return why any output would be held now."""
        overtaken = not plan.settled or (self.progress.inbox and self.limit is None)
        return OVERTAKEN if overtaken else None if self._only_output else not_well(fresh, plan)

    def _written_output(self, plan: Plan, fresh: list[Call], result: RequestResult) -> tuple[Json, StopReason]:
        """Return the output as it was written, and the stop reason that belongs to its form."""
        output = result.output if plan.request else self.context.plan_output
        completed = [call for call in fresh if call.spec.tool_name == TASK_COMPLETE and call.state.status == "done"]
        if output is None and completed:
            return completed[-1].state.result, "task_complete"
        if not self._dialect.text_answers or not result.text.strip() or result.problem is not None:
            return output, "output"
        read: ParsedText = self._outputs.read_text(result.text, beside_calls=bool(plan.own))
        if read.kind == "prose" and not plan.own:
            self.progress.wants = "structured"
        return read.value, "answer" if read.kind == "text" else "output"

    def _keep_past(self, plan: Plan) -> None:
        past = self.past
        self.progress.sent = added(self.progress.sent, sent_by(plan.made()))
        begin = len(past.calls)
        for call in plan.made():
            past.calls.append(self.call_view(call))
            self.kept.add(call, self.sizes)
        if self.records:
            record(past.calls, list(plan.made()), self.sizes, self.reading.recorded)
        self.past_bytes += sum(weight(view, self.sizes) for view in past.calls[begin:])
        past.edges.extend(plan.named_edges())
        past.reads |= plan_reads(plan.made())
        past.writes |= plan_writes(plan.made())
        self._recent = [*self._recent, *plan.made()][-RECENT:]
        self._done += plan.done
        self.plan, self._views = None, {}
        self._telling.plan_is_over()

    def dry_plan(self, number: int) -> Plan:
        """Return an empty plan with a state of its own, on which calls are simulated (R5.6)."""
        return self._new_plan(number, dry_run=True)

    def take_up(self, progress: RunProgress, past: PastRequests, state: State) -> None:
        """Continue from the state of an earlier execution (R6.8)."""
        self.progress, self.past, self.state, self.reading.state = progress, past, state, state
        self.shares.expected = progress.expected
        self.restored_at, self.table = progress.number, SourceTable(past.sets)
        self.reading.take_up(past.calls, self.tools)
        self.past_bytes = sum(weight(view, self.sizes) for view in past.calls)
        self._done = sum(call.status == "done" for call in past.calls)

    def note_answer(self, result: RequestResult, *, cut: bool = False) -> None:
        """Count the cost of a complete answer, once, before its delegates share what is left (R9.6)."""
        view = self.past.log[-1]
        if view.status != "done":
            text_answers = self._dialect.text_answers
            count_answer(view, result, self.progress, self.prepared.prices, text_answers=text_answers)
            self.notes.answered(view, result, says=self._says(result) is not None, cut=cut)

    def _says(self, result: RequestResult) -> Json:
        """Return the text or output of an answer as it was written; `None` if it has none."""
        text = result.text if self._dialect.text_answers and result.text.strip() else None
        return text if result.output is None else result.output

    def _note_said(self, result: RequestResult, refused: str | None, output: Json, *, over: bool) -> None:
        """Note the outcome of an answer's text or output. `refused`: why it is no output. `over`: it is the run's
        output.
        """
        written = self._says(result)
        says = written if written is None or output is None or self.stop_reason == "task_complete" else output
        refused = refused or why_not(result, self.progress.wants)
        self.notes.said(text_of(says, self.sizes, replies=self.records), refused, output=over)


_WRITE = 150
"""Bytes of a write beside its value, more or less."""


def snapshot(run: Run) -> RunSnapshot:
    """Return all that the next Request, a watcher and the result need."""
    run.state.compact()
    run.past.sets = run.table.as_json()
    table = SourceTable()
    numbers = [table.number(write.sources) for write in run.state.writes]
    return RunSnapshot(
        prepared=run.prepared,
        progress=run.progress,
        writes=run.state.writes,
        sets=table.as_json(),
        sources=numbers,
        policy=run.approval_queue.guard.change.as_change(),
        remembered={name: sorted(sources) for name, sources in run.approval_queue.guard.remembered.items()},
        vouched=run.approval_queue.vouched.known,
        refusals=run.approval_queue.refusals,
        past=run.past,
        events=run.notes.journal.carried(),
    )


def restore(
    agent: Agent,
    context: Context,
    snapshot: RunSnapshot,
    approval_queue: ApprovalQueue | None = None,
    *,
    budget: Budget | None = None,
    sources: Mapping[str, list[str]] | None = None,
    notes: RunJournal | None = None,
) -> Run:
    """Return the run that a `snapshot` holds."""
    run = Run(agent, context, snapshot.prepared, approval_queue, budget=budget, sources=sources, notes=notes)
    run.notes.journal.take_up(snapshot.events)
    table, numbers = SourceTable(snapshot.sets), snapshot.sources
    writes = [
        write.model_copy(update={"sources": table.of(number)})
        for write, number in zip(snapshot.writes, numbers or [-1] * len(snapshot.writes), strict=True)
    ]
    run.take_up(snapshot.progress, snapshot.past, State(writes, run.sizes))
    return run


def carried(run: Run) -> int:
    """Return the bytes of a snapshot, more or less. Values are measured once, and nothing is encoded."""
    run.state.compact()
    return sum(map(run.sizes.of, run.carries())) + _WRITE * len(run.state.writes) + run.past_bytes


class Attempts:
    """The record of snapshots that were too large. To make one costs what it holds, also where it is too large (R18.5)."""

    def __init__(self) -> None:
        self._failed: tuple[int, int] | None = None

    def worth(self, size: int, most: int) -> bool:
        """Whether a snapshot of about `size` bytes may have at most `most` when packed, judged by earlier ones."""
        if size > MAX_CARRIED:
            return False
        return self._failed is None or size * self._failed[1] <= most * self._failed[0]

    def note(self, size: int, packed: int) -> None:
        """Record that a snapshot of about `size` bytes had `packed` bytes, which was too much."""
        self._failed = size, packed
