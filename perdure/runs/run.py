"""A run between its Requests.

Plain data and rules; the workflow drives it. For each Request: `begin_request`, a `Plan` from `open_plan`, and
`close_request` when the plan has settled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.approvals.queue import ApprovalQueue
from perdure.approvals.requests import hook_feedback
from perdure.hooks.events import RunOwner
from perdure.models.dialects.registry import DIALECTS
from perdure.models.media_parts import names_files
from perdure.models.providers.capabilities import capabilities_of
from perdure.models.requests import ModelWait, RequestContext, RequestInput, RequestResult, RequestView
from perdure.models.usage import Usage
from perdure.plan import LAZY_READS, Call, Outcome, Plan
from perdure.rules import Rule, RuleRecord
from perdure.runs._output import JudgedOutput, KnownText, RunOutput, WrittenOutput, reads_alike, whole_output
from perdure.runs.agent import AgentSpec, CalledTool, Context, ModelChoice, Situation
from perdure.runs.context import (
    CUT,
    OVERTAKEN,
    RunConversation,
    ended_badly,
    engine_message,
    error_message,
    not_well,
    plan_notes,
    request_problems,
    return_to_planning,
    with_reasons,
)
from perdure.runs.event_journal import RunJournal, text_of, why_not
from perdure.runs.fork import Fork, call_key
from perdure.runs.limits import REPEATS, Budget, StopReason, answer_print, is_stuck
from perdure.runs.notifications import ApprovalRoutes, NotificationView, Notify, approval_routes
from perdure.runs.progress import RunLimits, RunProgress, count_answer
from perdure.runs.provenance import RunProvenance
from perdure.runs.records import PastRequests, RunRecords
from perdure.runs.run_log import RunLog, StepKind
from perdure.runs.sent_texts import merge_digests, sent_by
from perdure.runs.shared_budgets import SharedBudget, merged_budgets
from perdure.runs.standing_approvals import StandingClaim
from perdure.runs.undo import EffectLog, UndoRecord
from perdure.runs.version_switches import (
    JUDGED_ANEW,
    MUST_CALL_IN_LOOPS,
    OUTPUT_BINDS_AT_END,
    OUTPUT_HAS_ITS_SOURCES,
    RECORDED_CALLS_FIRST,
    REMARKS_END_NOTHING,
    UNDO_KNOWS_DEFAULTS,
)
from perdure.runs.wire import PreparedWorker, RunInput
from perdure.tools.engine import free_name
from perdure.values.json import Json, JsonObject
from perdure.values.limits import MAX_OUTPUT_TEXTS
from perdure.values.provenance import KnownSources
from perdure.values.schemas import Schema
from perdure.values.state import State
from perdure.values.templates import TextBudget, text_form


@dataclass(frozen=True)
class RunIdentity:
    """The place of a run: its owner, its parent agents, and whether a session reads its result."""

    owner: RunOwner = field(default_factory=RunOwner)
    parents: tuple[str, ...] = ()
    """The agents of the runs above a delegate's, outermost first."""
    in_session: bool = False
    """Whether a session keeps the results of the run's calls (R10.10)."""
    queue: str = ""
    """Task queue of the run's workers."""
    routes_above: ApprovalRoutes | None = None
    """Routes of the run above, for approval requests (R19.5)."""
    reasoning: bool = False
    """Whether the result holds the model's reasoning, for a session's readers (R10.16)."""
    budgets_above: tuple[SharedBudget, ...] = ()
    """The budgets of the run above that many runs share (R24.8)."""
    last_message: str = ""
    """The last message of the person in its session, for people who decide."""
    requesters: tuple[str, ...] = ()
    """People, besides the owner's sender, whose messages the run begins with (R24.6)."""
    evaluated: bool = False
    """Whether the run belongs to an evaluation (R22.3)."""

    @classmethod
    def of(cls, run_input: RunInput, queue: str = "") -> RunIdentity:
        return cls(
            owner=run_input.whose,
            parents=tuple(run_input.lineage),
            in_session=run_input.records,
            queue=queue,
            routes_above=run_input.routes_above,
            reasoning=run_input.reasons,
            last_message=run_input.said,
            requesters=tuple(run_input.requesters),
            evaluated=run_input.evaluated,
            budgets_above=tuple(run_input.budgets),
        )


class RunState:
    """The state of one run. Raises `InputError` or `AgentError` when the agent or the input cannot be used (R2.3)."""

    def __init__(
        self,
        agent: AgentSpec,
        context: Context,
        prepared: PreparedWorker,
        approval_queue: ApprovalQueue | None = None,
        *,
        identity: RunIdentity | None = None,
        budget: Budget | None = None,
        sources: Mapping[str, list[str]] | None = None,
        journal: RunJournal | None = None,
        fork: Fork | None = None,
        undo: UndoRecord | None = None,
    ) -> None:
        self.agent = agent
        self.fork = fork
        """The record of the run from which this one was forked."""
        self.undo = undo
        """The calls of the run that this run undoes."""
        self.context = context
        self.prepared = prepared
        self.identity = identity or RunIdentity()
        self.journal = journal or RunJournal()
        """Journal of the run's events (R10.14)."""
        self.sizes = self.journal.sizes
        """Bytes of the run's values, each measured once (R18.1)."""
        self.tools = {tool.name: tool for tool in prepared.tools}
        self.approval_queue = approval_queue or ApprovalQueue()
        """Queue of requests that wait for a person."""
        self.approval_queue.judges_anew = prepared.follows(JUDGED_ANEW)
        self.rules = self.approval_queue.rules
        """The run's rules, with their record (section 23)."""
        self.provenance = RunProvenance(context, sources or {}, agent.config.show, prepared.delegates, self.sizes)
        """Provenance of the run's data, and of its model's prompts (section 15)."""
        self.provenance.instruct(prepared.prompt)
        self.provenance.offer(context.hosted)
        self.progress = RunProgress(
            told=self.provenance.conversation_sources, must_call=self._offered(agent.config.must_call)
        )
        self.limits = RunLimits(agent.config, self.progress, budget)
        rules = Notify() if self.identity.evaluated else agent.config.notify
        self.approval_routes = approval_routes(rules, self.identity.queue, self.identity.routes_above)
        """Routes for approval requests of this run, and of those below it (R19.5)."""
        self.notifications: list[NotificationView] = []
        """The newest notifications."""
        self.wait: ModelWait | None = None
        """Reason for the wait while the model's provider is unavailable (R20.5)."""
        self.plan: Plan | None = None
        """The running plan."""
        self.log: RunLog | None = None
        """Log of the driver's reports, in a replay that plays the run again; workers keep none."""
        knows_defaults = prepared.follows(UNDO_KNOWS_DEFAULTS)
        effects = EffectLog(prepared.tools, prepared.undo_tools, self.sizes, knows_defaults=knows_defaults)
        self.records = RunRecords(self.sizes, effects, self.provenance.recorded if self.identity.in_session else None)
        self.conversation = RunConversation(agent, context, prepared, self.sizes, self.provenance)
        self.output = RunOutput(
            agent.output_schema,
            text_answers=DIALECTS[agent.config.dialect].text_answers,
            reasoning=self.identity.reasoning,
        )
        state_schema = context.state.data_schema
        self._state_schema = None if state_schema is None else Schema(state_schema)
        self.standing: StandingClaim | None = None
        """The standing approvals that hold for the parts of the run's loops, or for this part of one (R23.3)."""
        self._only_output = False  # the Request was for an output only: the output counts in spite of failed calls
        self._text: KnownText | None = None
        """Text of the last answer's output, while its calls run."""
        self.note_requesters()

    @property
    def state(self) -> State:
        """The state that the run's calls read and write."""
        return self.provenance.state

    @property
    def rule_record(self) -> RuleRecord | None:
        """The record of the run for the rules of the run above, or of its session; `None` without rules."""
        if not self.rules.rules:
            return None
        if self.identity.in_session:
            return self.rules.record_of([rule for rule in self.rules.recorded if rule.is_of_session], summed=True)
        return self.rules.record_of(self.rules.recorded)

    @property
    def lineage(self) -> list[str]:
        """The agents above, outermost first, and this one."""
        return [*self.identity.parents, self.agent.name]

    @property
    def shared_budgets(self) -> list[SharedBudget]:
        """The budgets that the run shares with others: those of the run above, and its worker's (R24.8)."""
        return merged_budgets(self.identity.budgets_above, self.prepared.budgets)

    @property
    def final(self) -> bool:
        """Whether the coming Request is for an output only, and offers no tools."""
        return self.limits.reached is not None or self.progress.wants != "plan"

    def restore(self, progress: RunProgress, past: PastRequests, state: State) -> None:
        """Continue from the state of an earlier execution (R6.8)."""
        self.progress = progress
        self.note_requesters()
        self.limits.pool.expected = progress.expected
        self.records.restore(past, progress.number)
        self.provenance.restore(state, past.calls, self.tools)

    def note_requesters(self) -> None:
        """Set the senders of the run's messages: a quorum may exclude these people (R24.6)."""
        names = [self.identity.owner.sender, *self.identity.requesters]
        names += [message.sender for message in self.progress.inbox]
        names += [message.sender for message in self.progress.heard]
        self.approval_queue.requesters[:] = dict.fromkeys(filter(None, names))

    def values(self) -> Iterator[Json]:
        """Yield the values that continue-as-new carries over, as far as they grow with the run."""
        yield from (write.value for write in self.state.writes)
        yield from self.progress.values()

    def keep_log(self, log: RunLog) -> None:
        """Record the driver's reports from now on."""
        self.log, self.approval_queue.note = log, log.note

    def note(self, kind: StepKind, *data: Any, call: str = "") -> None:  # the arguments of a method of the run
        """Record a report of the driver, if a log is kept."""
        if self.log is not None:
            self.log.note(kind, *data, call=call, limit=self.limits.reached)

    # The beginning of a Request.

    def situation(self) -> Situation:
        """Return the facts from which the next Request's model is chosen (R9.4)."""
        self.note("situation")
        progress = self.progress
        progress.number += 1
        return_to_planning(self.progress)
        if self.limits.reached is None and is_stuck(progress.answers, self.agent.config.stuck_after):
            progress.told_to_vary = progress.number
            progress.messages.append(engine_message(REPEATS.format(count=self.agent.config.stuck_after)))
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
        self.note("request", choice)
        return self._begin_request(choice)

    def _begin_request(self, choice: ModelChoice) -> RequestInput:
        number = self.progress.number
        self._offer_recall()
        self.provenance.begin(self.state, self.progress)
        return_to_planning(self.progress)
        self.journal.taken(self.progress.inbox, number)
        context = self.conversation.begin(
            choice, self.tools, self.progress, self.state, self.plan, self.limits.reached, final=self.final
        )
        if hosted := self._hosted(choice.model):
            context.parameters["hosted_tools"] = hosted
        view = RequestView(number=number, model=choice.model, reason=choice.reason, messages=len(context.messages))
        log = self.records.past.log
        log.append(with_reasons(view, log, self.progress.messages))
        self.journal.request_began(view)
        # A person reviews a complete plan: its calls are not needed before the answer's end (R7.6).
        stream = self.agent.config.stream and not self.approval_queue.guard.shows_plans
        return RequestInput(number=number, model=choice.model, reason=choice.reason, stream=stream)

    def _hosted(self, model: str) -> list[str]:
        """Return the hosted tools that a Request to this model offers (R20.6).

        A policy may have become stricter since the start, and a worker's own function may choose any model.
        """
        has, guard = capabilities_of(model).hosted_tools, self.approval_queue.guard
        return [name for name in self.context.hosted if name in has and guard.why_hosted(name) is None]

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
        self.note("again", choice, tight)
        self.records.past.log.pop()
        if tight:
            self.journal.compacted(choice.reason)
        self.progress.tight = self.progress.tight or tight
        return self._begin_request(choice)

    def request_context(self, number: int) -> RequestContext:
        """Return the context of Request `number`, for as long as it is the last one begun."""
        context = self.conversation.context(number)
        tenant = self.identity.owner.tenant
        if tenant and any(map(names_files, context.messages)):  # a worker of an older release reads any other context
            context.tenant = tenant
        return context

    # The plan of a Request.

    def open_plan(self, number: int) -> Plan:
        """Open the plan of a Request: an empty plan, or the plan that continues under the Request."""
        self.note("plan", number)
        self._only_output = self.final
        if self.plan is None:
            self.plan = self.new_plan(number)
        else:
            self.plan.begin(number, self.conversation.turns.tools(self.tools), self._known_sources(number))
        return self.plan

    def new_plan(self, number: int, *, dry_run: bool = False) -> Plan:
        """Return an empty plan for Request `number`. With `dry_run` it has a state of its own, and calls are simulated
        on it (R5.6).
        """
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
            known=self._known_sources(number),
        )

    def dry_plan(self, number: int) -> Plan:
        """Return an empty plan with a state of its own, on which calls are simulated (R5.6)."""
        return self.new_plan(number, dry_run=True)

    def _known_sources(self, number: int) -> KnownSources:
        return self.provenance.known(number, self.progress, self.approval_queue.vouched.stands)

    def recorded(self, call: Call, *, decided: bool = False) -> Outcome | None:
        """Return the outcome of a ready call from the record that a fork begins with; `None`: the call has to run (R22.1).

        `decided`: the call needs no further approval.
        """
        self.note_keys(call)
        if self.plan is None or self.fork is None:
            return None
        params = call.inputs.params
        outcome = self.fork.take(call, call.state.key, decided=decided, checks=self.plan.checks)
        if call.inputs.params is not params:
            self.note_keys(call)
            self.approval_queue.feedback.append(hook_feedback(call, ", ".join(call.inputs.changed_by)))
        return outcome

    def note_keys(self, call: Call) -> None:
        """Note the keys of a call's present form, if a record has them or will have them (R22.1)."""
        if self.plan is None or (self.fork is None and self.records.collected is None):
            return
        values, inputs, state = self.plan.home(call).values(call), call.inputs, call.state
        state.key = state.written_key = call_key(call, values, inputs.params)
        if inputs.unhooked is not None:
            state.written_key = call_key(call, values, inputs.unhooked)

    def note_child_calls(self, call: Call, lent: Sequence[Rule], record: RuleRecord | None) -> None:
        """Note the calls of a call's child run for a fork: its rules count them (R23.1)."""
        if self.records.collected is not None:
            call.state.child_calls = self.rules.child_calls(lent, record).as_json()

    def may_answer(self, call: Call) -> bool:
        """Whether the record that a fork begins with may answer the call, before other calls begin (R22.1)."""
        return self.fork is not None and self.prepared.follows(RECORDED_CALLS_FIRST) and self.fork.may_answer(call)

    # The end of a Request.

    def close_request(
        self,
        plan: Plan,
        result: RequestResult,
        *,
        cut: bool = False,
        is_patched: Callable[[str], bool] = lambda _: True,
    ) -> bool:
        """Close a Request whose calls have all ended; return whether the run is over.

        If its plan continues under the next Request, only the ended calls count (R10.5). `cut`: a message has ended the
        answer. `is_patched` returns whether this execution follows a rule that may be newer than its history. `output`
        has the output of an ended run (R6.1).
        """
        self.note("close", result, cut)
        if self.limits.reached is None:
            return_to_planning(self.progress)
        progress, turns, self._text = self.progress, self.conversation.turns, None
        fresh = turns.fresh(plan)
        problems = request_problems(fresh, result, self.provenance.shown_error)
        progress.refusals = 0 if result.refusal is None else progress.refusals + 1
        wanted, progress.wants = progress.wants, "plan"
        turns.keep_results(progress, fresh)
        judged = self._judge_output(plan, fresh, result, is_patched)
        shown = self.provenance.shown_problems([*judged.problems], self.output.sources)
        problems += [error_message(None, {"code": "invalid_output", "message": each}) for each in shown]
        if judged.problems or judged.counts:
            self.provenance.note_shown(self.output.sources, progress)  # in an error message, or as a draft
        over = judged.counts and not self._is_to_refine(wanted)
        if over:
            self._end(judged.value, judged.reason, result.thought)
        elif judged.counts:
            progress.draft, progress.wants = judged.value, "refined"
            progress.draft_sources = sorted(self.output.sources)
        progress.cut += cut
        self._add_messages(
            plan, fresh, result, problems, ([CUT] if cut else []) + ([judged.held] if judged.held else [])
        )
        if plan.settled:
            self._end_plan(plan)
        progress.called = CalledTool.of_calls(
            (call.spec.tool_name, call.spec.tool) for own in plan.own for call in own.written()
        )
        progress.after_error = bool(problems) or any(call.state.status == "failed" for call in fresh)
        turns.note_plan(progress, plan)
        if plan.request:
            self.note_answer(result, cut=cut)
            self._note_text(result, judged, over=over)
            answer = [answer_print(result, [call.spec.raw for call in plan.own])][cut:]
            progress.answers = [*progress.answers, *answer][-self.agent.config.stuck_after :]
        return over or (wanted == "refined" and self.end_with_draft())

    def _add_messages(
        self, plan: Plan, fresh: list[Call], result: RequestResult, problems: list[JsonObject], notes: list[str]
    ) -> None:
        """Add the Request's turn and its feedback to the model's messages, and record their provenance."""
        progress = self.progress
        self.provenance.note(plan, progress, turns=self.conversation.shows_turns)
        feedback = [*self.provenance.shown_feedback(self.approval_queue.feedback, plan), *problems]
        feedback += plan_notes(fresh, plan)
        feedback += [engine_message(each) for each in notes]
        turn = self.conversation.turns.turn(progress, plan, fresh, result, self.records.past.log)
        progress.messages += [*turn, *feedback]
        self.approval_queue.feedback.clear()

    def _end_plan(self, plan: Plan) -> None:
        """Record the calls of a plan that has settled."""
        self.progress.sent = merge_digests(self.progress.sent, sent_by(plan.every_call()))
        self.records.add(plan)
        self.plan = None
        self.conversation.turns.plan_is_over()
        self.sizes.retain(self.values())

    def note_answer(self, result: RequestResult, *, cut: bool = False) -> None:
        """Count the cost of a complete answer, once, before its delegates share the remaining budget (R9.6)."""
        view = self.records.past.log[-1]
        if view.status != "done":
            text_answers = self.output.text_answers
            count_answer(view, result, self.progress, self.prepared.prices, text_answers=text_answers)
            self.journal.request_ended(view, result, has_text=self.output.text(result) is not None, cut=cut)
            if result.spent is not None:
                self._count_usage(view.model, result.spent, requests=0)

    def count_reported(self, model: str, usage: Usage, *, requests: int) -> None:
        """Count usage outside of the run's answers: of tools, of samples, and of failed attempts (R9.6)."""
        if usage.tokens or requests:
            self.note("reported", model, usage, requests)
            self._count_usage(model, usage, requests=requests)

    def _count_usage(self, model: str, usage: Usage, *, requests: int) -> None:
        """Add usage to the run, and to the shared budgets if it has any."""
        self.progress.usage.count(model, usage, self.prepared.prices, requests=requests)
        if self.shared_budgets:
            self.progress.unsettled.count(model, usage, self.prepared.prices, requests=requests)

    def read_text(self, plan: Plan, result: RequestResult) -> None:
        """Show readers the known part of an answer's text, while its calls run to their end (R19.4)."""
        if self._text is None:
            self._text = self._known_text(plan, result)
        self._text.read_on()
        self.journal.text_known(self._text.text, self._text.form)

    def stop_text(self) -> None:
        """Show no more of the answer's text: it will not be the output."""
        if self._text is not None:
            self._text.stop()

    def _known_text(self, plan: Plan, result: RequestResult) -> KnownText:
        value: Json = None
        streams = self.agent.config.stream and plan.request and self.prepared.follows(OUTPUT_BINDS_AT_END)
        fails = result.problem is not None or result.anew or plan.rejected or any(map(ended_badly, plan.calls))
        if streams and not fails and not self._is_to_refine(self.progress.wants):
            value = self.output.text_value(plan, result)
        texts = TextBudget(self.prepared.max_payload, self.sizes, total=MAX_OUTPUT_TEXTS)
        return KnownText(value, self.context.values(), texts, self.sizes, plan.read_final)

    def _note_text(self, result: RequestResult, judged: JudgedOutput, *, over: bool) -> None:
        """Note the outcome of an answer's text or output. `over`: it is the run's output."""
        written, output = self.output.text(result), judged.value
        is_final = written is not None and output is not None and self.output.stop_reason != "task_complete"
        refused = judged.held or next(iter(judged.problems), None) or why_not(result, self.progress.wants)
        shown = output if is_final else written
        text = text_of(shown, self.sizes, replies=self.identity.in_session)
        self.journal.text_ended(text, refused, output=over, form=text_form(shown))

    # The output.

    def _judge_output(
        self, plan: Plan, fresh: list[Call], result: RequestResult, is_patched: Callable[[str], bool]
    ) -> JudgedOutput:
        """Return the output of an answer with its references replaced, or the reason why it does not count."""
        progress = self.progress
        output = self.output.read(result.output if plan.request else self.context.plan_output, plan, fresh, result)
        if output.needs_form and (plan.settled or not is_patched(REMARKS_END_NOTHING)):
            progress.wants = "structured"
        # A run of 0.1.0 has read the state of that moment, and continued with it.
        # While calls of the plan run, its end cannot be read: the output is held anyway.
        at_end = plan.settled and (
            output.reason == "task_complete"
            or reads_alike(output.value, self.state.snapshot(), plan.read_at_end)
            or is_patched(OUTPUT_BINDS_AT_END)
        )
        self.output.sources = self.provenance.of_output(
            output.value,
            plan,
            self.state,
            below=bool(self.identity.parents),
            at_end=at_end,
            of_call=output.reason == "task_complete" or not is_patched(OUTPUT_HAS_ITS_SOURCES),
        )
        called = [call.spec.tool_name for call in fresh if call.state.status == "done"]
        if progress.must_call and is_patched(MUST_CALL_IN_LOOPS):
            called += self.records.done_in_loops(fresh)
        uncalled = self._why_uncalled(called)
        held = None if output.value is None else self._why_held(plan, fresh)
        if held is not None:
            return JudgedOutput(None, output.reason, held=held)
        value, problems = self._resolve(output, plan if at_end else None)
        if uncalled is not None and (value is not None or progress.wants != "plan" or not fresh):
            progress.wants = "plan"
            return JudgedOutput(None, output.reason, [uncalled])
        return JudgedOutput(value, output.reason, problems or self.output.check(value))

    def _resolve(self, output: WrittenOutput, plan: Plan | None) -> tuple[Json, list[str]]:
        """Return an output with its references replaced, and their problems (R6.4).

        References are read at the end of `plan`, or from the state if there is no plan.
        """
        if output.value is None or output.reason == "task_complete":
            return output.value, []
        data = {**self.context.values(), "state": self.state.snapshot()}
        at_end = None if plan is None else plan.read_at_end
        lazily = self.prepared.follows(LAZY_READS)
        return whole_output(output.value, data, self.prepared.max_payload, self.sizes, at_end, reads_lazily=lazily)

    def _why_uncalled(self, called: Iterable[str]) -> str | None:
        """Return the reason why no output counts yet: the model has called none of the tools that it must call (R6.5).

        `called`: the tools of the calls that are done. If a decision in this Request set the tools, the Request's calls
        do not count: the model wrote them earlier.
        """
        progress, changed = self.progress, self.approval_queue.must_call
        if changed is not None:
            progress.must_call, self.approval_queue.must_call = self._offered(changed), None
        elif not set(progress.must_call).isdisjoint(called):
            progress.must_call = []
        if not progress.must_call or self.limits.reached is not None:
            return None
        return f"no output counts before a call of {' or '.join(progress.must_call)}: make that call first"

    def _offered(self, names: list[str]) -> list[str]:
        return [name for name in names if name in self.tools]

    def _why_held(self, plan: Plan, fresh: list[Call]) -> str | None:
        """Return the reason why any output would be held now."""
        overtaken = not plan.settled or (self.progress.inbox and self.limits.reached is None)
        return OVERTAKEN if overtaken else None if self._only_output else not_well(fresh, plan)

    def _is_to_refine(self, wanted: str) -> bool:
        """Whether the smart model has to refine an output (R9.4)."""
        models, log = self.prepared.models, self.records.past.log
        fast = bool(log) and log[-1].model == models.fast != models.smart
        wants = self.agent.config.refine and wanted == "plan" and not self.provenance.hides(self.output.sources)
        return wants and self.limits.reached is None and fast and self.progress.number > 1

    def end_with_draft(self) -> bool:
        """End with the output that was to be refined; return `False` if there is none."""
        self.note("draft")
        if (draft := self.progress.draft) is not None:
            self.output.sources = frozenset(self.progress.draft_sources)
            self._end(draft, "output")
        return draft is not None

    def _end(self, output: Json, reason: StopReason, reasoning: str = "") -> None:
        self.progress.draft, self.progress.draft_sources = None, []
        limit = self.limits.reached
        self.output.end(output, reason if limit is None else limit.reason, reasoning)
