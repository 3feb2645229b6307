"""The approval queue of a run: requests that wait, and the effect of each decision.

The rules do no I/O. `judge` validates a decision without a change, so that an update can refuse it; `apply` applies it.
A driver waits for the decision or the timeout, and then runs the call or ends it, as the verdict requires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from perdure.approvals.decisions import Decision, Digests, Endorsements, approval_digest, endorse, parse_decision
from perdure.approvals.policy import Guard, PlanApproval, Policy, may_tighten
from perdure.approvals.requests import (
    NAMED,
    ApprovalRequest,
    ApprovalVerdict,
    JudgedDecision,
    changed_words,
    edit_key,
    question_words,
    what_runs,
)
from perdure.errors import CallError, DecisionError, ReferenceSyntaxError, clip
from perdure.plan import Approval, Call, DecisionKind, Failed, Plan, Rejected, Returned, again, surplus_words
from perdure.rules import Breach, FollowedBy, RuleBook, broken_rules, still_satisfies
from perdure.tools.engine import answer_problem
from perdure.tools.quorum import Approver, Quorum, approval_problem, merge_quorums
from perdure.tools.server_input import ServerQuestion
from perdure.tools.tool import Tool
from perdure.values.json import Json, JsonObject, shorten
from perdure.values.limits import MAX_FLOWS
from perdure.values.provenance import USER, foreign_words
from perdure.values.templates import held_marks, written_call

PLAN_SCOPE: Final = "the whole plan needs an approval before its calls run"
KEPT_REFUSALS: Final = 20
ASSUMED: Final = "assumed"
"""The approver's name in a run that is only played again."""
CHANGED: Final = "a decision has changed a call of the procedure, or its run's policy has become stricter"
REJECTED_BY_POLICY: Final = "rejected by the policy"
"""Beginning of the reason of a call that a flow rule refuses."""
_STRICTEST: Final = ("fail", "reject", "approve")


@dataclass(frozen=True, slots=True)
class ApprovalNeed:
    """The reason for an approval request, and the broken rules. Without a reason, no request is needed. `covered`: the
    plan's approval covers the call.
    """

    reason: str | None
    covered: bool
    breaches: frozenset[str]


@dataclass
class ApprovalQueue:
    """The approval requests of one run that wait for a decision."""

    guard: Guard = field(default_factory=Guard)
    rules: RuleBook = field(default_factory=RuleBook)
    """The run's rules: a person can allow a breach only if its rule permits that (R23.2)."""
    requesters: list[str] = field(default_factory=list)
    """The person for whom the run works, and other senders of its messages. All requests share the list."""
    waiting: dict[str, ApprovalRequest] = field(default_factory=dict)
    refusals: list[JsonObject] = field(default_factory=list)
    """Decisions that changed nothing: `{"time", "decision", "problem"}`, the newest `KEPT_REFUSALS`."""
    feedback: list[JsonObject] = field(default_factory=list)
    """Feedback for the model at the end of the Request (R7.5); the run takes it from here."""
    must_call: list[str] | None = None
    """The tools that the last decision required for the output; `None` once the run has taken them, or if no decision
    set them."""
    vouched: Endorsements = field(default_factory=Endorsements)
    """The values that people endorse in this run (R15.6)."""
    digests: Digests = field(default_factory=Digests)
    """Digests of large shown values, each computed once; kept while a request waits."""
    note: Callable[..., None] | None = None
    """Records what is reported to the queue, in a replay that plays the run again; workers record nothing."""
    allowed_sources: Sequence[str] | None = None
    """The allowed sources of the approved plan's values; `None`: any source."""
    is_changed: bool = False
    """Whether a decision has changed a call or the plan, or a change has made the policy stricter. Standing approvals
    then decide no more."""
    judges_anew: bool = True
    """Whether a change of the policy, and a rule that is broken only now, count for waiting requests and approved plans,
    and a change ends standing approvals. In runs of 0.2.0 they do not."""
    _reset_at: str = ""
    """The time of the first task after the last reset."""
    _decided: dict[str, Approval] = field(default_factory=dict)
    _approved_plan: int | None = None
    _approved_by_person: bool = False
    _approved_above: bool = False
    """Whether this is the queue of a loop's part, whose plan is not shown."""
    _is_tightened: bool = False
    """Whether the policy has become stricter since a plan was approved: it judges each call of that plan."""

    def add_call(
        self, plan: Plan, call: Call, time: str, required_by: Callable[[], Iterable[FollowedBy]] = tuple
    ) -> ApprovalRequest | None:
        """Return an approval request for a ready call, if the call needs one (R7.1).

        `required_by`: returns the `followed_by` rules that require the call. It is called only if the call needs a request.
        """
        need = self._judge_call(plan, call)
        if need.reason is None:
            if need.covered and self._approved_by_person and call.spec.template.literal:
                _approve(call, self.digests)
            return None
        call.approval = again(call.approval, time)
        request = ApprovalRequest(
            call.id,
            need.reason,
            plan,
            call.approval,
            call,
            floor=bool(need.breaches) or self.guard.floor_asks(call.spec.known_tool, call.inputs.origins),
            breaches=need.breaches,
            required_by=list(required_by()),
            digests=self.digests,
            quorums=self._quorums([call], shown=True),
            requesters=self.requesters,
        )
        request.reason += what_runs(request)
        plan.hold(call)
        return self._put_out(request)

    def _judge_call(self, plan: Plan, call: Call) -> ApprovalNeed:
        """Return whether a ready call needs a request, and why."""
        reason = self.guard.why(call.spec.known_tool, call.inputs.params, plan.checks, call.inputs.origins)
        if reason is not None and call.inputs.items is not None:
            reason = f"{reason}, and runs for each of {len(call.inputs.items)} items"
        breaches = self.rules.questions(call, plan.checks)
        if breaches:
            reason = "; ".join([*([] if reason is None else [reason]), *(each.message for each in breaches)])
        covered = not breaches and self._covered_by_plan(plan, call)
        if covered and self.allowed_sources is not None:
            foreign = foreign_words(call.spec.tool_name, call.inputs.origins, self.allowed_sources)
            if foreign is not None:
                covered, reason = False, f"{foreign}, which the standing approval does not allow"
            elif self.standing_approvals_ended:
                covered, reason = False, f"the standing approval does not allow it: {CHANGED}"
        if covered and not (self._is_tightened and reason is not None):
            reason = (reason or "its plan was approved unchanged") if call.inputs.changed else None
        else:
            covered = False
        return ApprovalNeed(None if reason is None else reason + changed_words(call), covered, broken_rules(breaches))

    @property
    def standing_approvals_ended(self) -> bool:
        """Whether no standing approval decides any more.

        Values may depend on a call that a decision has changed, or a stricter policy requires that a person decides.
        """
        return self.is_changed and self.judges_anew

    def refuse_flow(self, call: Call) -> Rejected | None:
        """Reject a ready call if a flow rule of the policy refuses one of its values (R15.5)."""
        why = self.guard.refuses(call)
        if why is None:
            return None
        self.feedback.append(
            {"type": "feedback", "call": call.as_plan_entry(), "decision": "reject", "by": "policy", "reason": why}
        )
        return Rejected(f"{REJECTED_BY_POLICY}: {why}")

    def add_question(self, plan: Plan, call: Call, time: str, asked: ServerQuestion | None = None) -> ApprovalRequest:
        """Return a request for a call whose result is the answer of a person, or of a client program.

        `asked`: the question, if the server of the tool asks it. Such a call runs, and continues with the answer
        (R21.3).
        """
        if asked is not None:
            approval = Approval(requested_at=time)
            call.approval = call.approval or approval  # the approver of its run no longer changes
            return self._put_out(
                ApprovalRequest(
                    call.id, asked.words, plan, approval, call, question=True, asked=asked, digests=self.digests
                )
            )
        call.approval = again(call.approval, time)
        request = ApprovalRequest(
            call.id, question_words(call), plan, call.approval, call, question=True, digests=self.digests
        )
        plan.hold(call, is_with_client=request.is_client_call)
        return self._put_out(request)

    def add_plan(self, plan: Plan, time: str, new_plan: Callable[[], Plan]) -> ApprovalRequest | None:
        """Return an approval request for a complete plan, if plans need approval and one of its calls would run
        (R7.6). `new_plan` returns an empty plan, in which an edit of this one is validated as a whole."""
        if self._approved_above or not self.guard.shows_plans or all(call.state.ended for call in plan.calls):
            return None
        request = ApprovalRequest(
            str(plan.request),
            PLAN_SCOPE,
            plan,
            Approval(requested_at=time),
            digests=self.digests,
            quorums=self._quorums(plan.written(), shown=False),
            requesters=self.requesters,
            new_plan=new_plan,
        )
        request.reason += what_runs(request)
        for call in request.calls:
            call.approval = None if call.state.ended else request.approval
        return self._put_out(request)

    def _put_out(self, request: ApprovalRequest) -> ApprovalRequest:
        self.waiting[request.id] = request
        if request.approval.requested_at == self._reset_at:
            self._renew(request)
        return request

    def renew(self, time: str) -> list[ApprovalRequest]:
        """Renew the waiting requests after a reset of the run, and return them.

        `time` is the time of the first task after the reset, as in `add_call`. That task repeats one from before the
        reset: requests that it adds later are also asked again.
        """
        self._reset_at = time
        return [request for request in self.waiting.values() if self._renew(request)]

    def _renew(self, request: ApprovalRequest) -> bool:
        """Renew a request, unless it waits for a client: no person is asked."""
        if not request.is_client_call:
            request.renew(self._reset_at)
        return not request.is_client_call

    def judge(self, decision: Decision, time: str = "", waited: float = 0.0) -> JudgedDecision:
        """Return the decision with its revised call or plan, without a change.

        `time`: the time of the decision (ISO 8601). `waited`: the seconds that the request had waited then, for a
        quorum's escalation.

        Raises `DecisionError` with the reason if the decision cannot be applied (R7.2, R7.3).
        """
        request = self.waiting.get(decision.call)
        if request is None:
            raise DecisionError(self._unknown_request(decision.call))
        if decision.digest is not None and decision.digest != request.digest:
            raise DecisionError(
                f"{request.title} has changed since it was shown: its digest is {request.digest}, not {decision.digest}"
            )
        if decision.decision == "answer" or request.question:
            return self._judge_answer(request, decision)
        if request.call is None:
            return self._with_approver(
                JudgedDecision(request, decision, plan=self._revised_plan(request, decision)), time, waited
            )
        call = request.call
        revised: Call | None = None
        if decision.decision == "edit":
            if decision.params is None:
                raise DecisionError(f"{request.title} is a call: its edit needs 'params'")
            revised = self._edited(request, call, decision.params)
        elif decision.decision == "replace":
            if decision.replacement is None:
                raise DecisionError(f"{request.title}: a replacement needs 'with', the new call")
            revised = request.plan.revised(call, _written(request, decision.replacement))
        if isinstance(decision.endorse, list) and (
            unknown := set(decision.endorse) - {*(revised or call).inputs.params}
        ):
            raise DecisionError(f"{request.title} has no parameter {shorten(min(unknown), 60)} to endorse")
        if decision.decision != "reject":
            self._check_allowed(request, call, revised)
        return self._with_approver(JudgedDecision(request, decision, revised), time, waited)

    def _check_allowed(self, request: ApprovalRequest, call: Call, revised: Call | None) -> None:
        """Raise `DecisionError` if no approval can allow the call in its revised or present form."""
        if (why := self.guard.refuses(revised or call)) is not None:
            raise DecisionError(f"{request.title} may not run: {why}")
        if (breach := self.rules.refusal(revised or call)) is not None:
            raise DecisionError(f"{request.title} may not run: {breach.message}")
        if revised is not None and self.judges_anew:
            for rule in request.required_by:
                if not still_satisfies(rule, call, revised):
                    raise DecisionError(
                        f"{request.title} cannot be changed so: {rule.words} requires it. Keep its tool, and the parameters of 'same'"
                    )

    def decide(self, judged: JudgedDecision) -> ApprovalVerdict:
        """Apply a person's decision. Raises `DecisionError` if the call breaks a rule that its request does not name.

        The request then names the rule, and its approvals no longer count: the person decides again.
        """
        if self.judges_anew:
            self.check_remember(judged)
        if broken := self.add_breaches(judged):
            words = "; ".join(each.message for each in broken)
            breaks = "now also breaks" if judged.call is None else "would break"
            raise DecisionError(f"{judged.request.title} {breaks} a rule: {words}. Decide again to allow it")
        return self.apply(judged)

    def add_breaches(self, judged: JudgedDecision) -> list[Breach]:
        """Add to the request the broken rules that it does not name, and return them.

        Other calls have begun since the request, or the person has edited the call.
        """
        request, call = judged.request, judged.call or judged.request.call
        if call is None or request.question or judged.decision.decision == "reject" or not self.judges_anew:
            return []
        edit = "" if judged.call is None else edit_key(judged.call)
        named = request.breaches | request.breaches_of(edit)
        new = [each for each in self.rules.questions(call) if each.rule.key not in named]
        if new:
            self.name_breaches(request, {each.rule.key: each.message for each in new}, edit)
        return new

    def name_breaches(self, request: ApprovalRequest, breaches: Mapping[str, str], edit: str) -> None:
        """Show broken rules in a request: each rule's key with the breach as text. `edit`: the key of the edit that would
        break them; without it, the approvals so far no longer count.
        """
        if self.note is not None:
            self.note("breaches", breaches, edit, call=request.id)
        request.add_breaches(breaches, edit)

    def check_remember(self, judged: JudgedDecision) -> None:
        """Raise `DecisionError` if a decision about a plan has `remember`. Only a call's tool can be remembered (R7.7)."""
        if judged.decision.remember and judged.request.call is None:
            raise DecisionError(f"{judged.request.title} is a plan: 'remember' is valid for a call; leave it out")

    def _with_approver(self, judged: JudgedDecision, time: str, waited: float) -> JudgedDecision:
        """Return the decision with its approver, if a quorum decides. Raises `DecisionError` if the approval does not
        count.
        """
        request, decision = judged.request, judged.decision
        revised = [judged.call] if judged.call is not None else []
        revised = [*judged.plan.written()] if judged.plan is not None else revised
        added = self._quorums(revised, shown=judged.call is not None)
        quorums = merge_quorums(request.quorums, added)
        if not quorums or decision.decision == "reject":
            return judged
        if decision.remember or decision.endorse:
            word = "remember" if decision.remember else "endorse"
            raise DecisionError(f"{request.title} needs a quorum: {word!r} of one person is not possible with it")
        if judged.plan is not None:
            raise DecisionError(
                f"{request.title} needs a quorum: approve it unchanged, or reject it with a reason that describes another plan"
            )
        before = [] if revised else request.approval.approvers
        approver = Approver(by=decision.by, roles=decision.roles, at=time, waited=waited)
        if problem := approval_problem(quorums, approver, before, request.requesters):
            raise DecisionError(f"{request.title}: {problem}")
        return replace(judged, approver=approver, quorums=added)

    def _quorums(self, calls: Iterable[Call], *, shown: bool) -> list[Quorum]:
        """Return the quorums of the calls; `shown`: whether their parameters are resolved."""
        return merge_quorums(
            *(
                self.guard.quorums(call.spec.tool, call.inputs.params if shown else None)
                for call in calls
                if call.spec.tool is not None
            )
        )

    def _edited(self, request: ApprovalRequest, call: Call, params: JsonObject) -> Call:
        """Return the call with these parameters. The others stay as they were shown, and no reference in them is
        resolved again (R7.2)."""
        if meta := [key for key in params if key.startswith("_")]:
            raise DecisionError(
                f"{request.title}: an edit changes parameters, not {shorten(meta[0], 40)}: replace it instead"
            )
        kept = {key: value for key, value in call.inputs.params.items() if key not in params}
        return request.plan.revised(call, call.spec.raw | _written(request, params), kept)

    def _judge_answer(self, request: ApprovalRequest, decision: Decision) -> JudgedDecision:
        call = request.call
        if call is None or not request.question:
            raise DecisionError(f"{request.title} is not a question: approve it, reject it, edit it or replace it")
        if decision.decision not in ("answer", "reject"):
            raise DecisionError(f"{request.title} is a question: answer it or reject it")
        is_answer = decision.decision == "answer" and not request.is_client_call
        problem = None
        if is_answer and request.asked is not None:
            try:
                request.asked.content(decision.answer)
            except ValueError as error:
                problem = str(error)
        elif is_answer:
            problem = answer_problem(call.inputs.params, decision.answer)
        if problem is not None:
            raise DecisionError(f"{request.title}: {problem}")
        return JudgedDecision(request, decision)

    def apply(self, judged: JudgedDecision) -> ApprovalVerdict:
        """Apply a decision that `judge` has accepted. The request continues to wait if approvals of others are missing
        (R24.6).
        """
        decision = judged.decision
        if self.note is not None:
            came = ("", 0.0) if judged.approver is None else (judged.approver.at, judged.approver.waited)
            self.note("decision", decision, *came, judged.by_person, call=judged.request.id)
        if judged.approver is not None:
            return self._add_approver(judged, judged.approver)
        return self._apply(judged, decision.decision, decision.by)

    def _add_approver(self, judged: JudgedDecision, approver: Approver) -> ApprovalVerdict:
        request = judged.request
        if judged.call is not None:
            kind, reason = judged.decision.decision, judged.decision.reason
            self._adopt(judged, Approval(requested_at="", decision=kind, by=approver.by, reason=reason))
            request.revise(kind, judged.quorums)
        request.approval.approvers = [*request.approval.approvers, approver]
        if request.missing:
            request.note_channel(judged.decision)
            return ApprovalVerdict(waits=True)
        return self._complete(judged)

    def _complete(self, judged: JudgedDecision) -> ApprovalVerdict:
        """Apply the decision of a request whose quorums are met."""
        request = judged.request
        names = " and ".join(each.by for each in request.approval.approvers)
        return self._apply(replace(judged, call=None), request.revised or judged.decision.decision, names)

    def _adopt(self, judged: JudgedDecision, approval: Approval) -> None:
        """Replace the waiting call by the revised one, and report that to the model."""
        call, revised = judged.request.call, judged.call
        if call is not None and revised is not None:
            self.is_changed = True
            changed = judged.decision.decision == "edit"
            before = call.inputs.params if changed else call.spec.raw
            judged.request.breaches |= judged.request.breaches_of(edit_key(revised))
            judged.request.plan.adopt(call, revised)
            after = call.inputs.params if changed else call.spec.raw
            self._add_feedback(judged.request, approval, {"before": before, "after": after})

    def _apply(self, judged: JudgedDecision, kind: DecisionKind, by: str) -> ApprovalVerdict:
        request, decision = judged.request, judged.decision
        approval = self._settle(request)
        approval.decision, approval.by, approval.reason = kind, by, decision.reason
        approval.via = decision.via
        if decision.must_call is not None:
            self.must_call = decision.must_call
        if decision.decision == "answer":
            asked = request.asked
            return ApprovalVerdict(Returned(decision.answer if asked is None else asked.content(decision.answer)))
        if decision.endorse and judged.by_person and request.call is not None:
            endorse(judged.call or request.call, decision.endorse, self.vouched, self.digests)
        if decision.remember and request.call is not None:
            shown = judged.call or request.call
            self.guard.remember(shown.spec.tool_name, shown.inputs.params, shown.inputs.origins)
        if decision.decision == "reject":
            reason = decision.reason or "no reason was given"
            if request.asked is None:  # else the tool's own result reports its effect
                self._add_feedback(request, approval, {})
            return ApprovalVerdict(Rejected(f"rejected{_by(decision.by)}: {reason}"))
        self._adopt(judged, approval)
        if judged.plan is not None:
            self.is_changed = True
            plans = [[call.spec.raw for call in plan.calls] for plan in (request.plan, judged.plan)]
            self._add_feedback(request, approval, {"before": plans[0], "after": plans[1]})
        if request.call is None:
            self._approve_plan(judged.plan or request.plan, approval, by_person=judged.by_person)
        elif judged.by_person:
            _approve(request.call, self.digests)
            self.rules.allow(
                request.call, request.breaches if self.judges_anew else broken_rules(self.rules.questions(request.call))
            )
        return ApprovalVerdict(plan=judged.plan)

    def judge_program(self, request: ApprovalRequest, answer: Json, by: str) -> JudgedDecision | None:
        """Return the decision of an approver program about a request, or `None` for `ask` (R7.9).

        The program answers with a decision, or with its kind alone. If the worker's floor requires approval, or a
        quorum decides, the program can only reject the call. Raises `DecisionError` if the answer is not a decision, or
        cannot be applied.
        """
        if answer in ("ask", {"decision": "ask"}):
            return None
        decision = {"decision": answer} if isinstance(answer, str) else answer
        if not isinstance(decision, dict):
            raise DecisionError(f"{by} gave {shorten(answer, 60)}, but must return a decision, or 'ask'")
        sent = parse_decision({**decision, "call": request.id, "by": by}, bounds_names=self.judges_anew)
        if request.quorums and sent.decision != "reject":
            return None
        judged = self.judge(sent)
        if self.judges_anew:
            self.check_remember(judged)
        if judged.approver is not None:  # its own change of the call needs a quorum
            return None
        return replace(judged, by_person=False) if self.may_decide(judged, by) else None

    def may_decide(self, judged: JudgedDecision, by: str) -> bool:
        """Whether the policy and the rules let the program `by` make this decision without a person."""
        if judged.decision.decision == "reject":
            return True
        request = judged.request
        plans = [plan for plan in (judged.plan, request.plan if request.call is None else None) if plan is not None]
        calls = [call for call in (request.call, judged.call) if call is not None]
        calls += [call for plan in plans for call in plan.written()]
        return not any(self._only_a_person(call, by) for call in calls)

    def apply_standing(self, decision: Decision, sources: Sequence[str]) -> tuple[JudgedDecision, ApprovalVerdict]:
        """Apply the decision of a standing approval, and return it with its effect (R23.3).

        In a plan it covers the calls whose values come from these `sources`. Raises `DecisionError` if it cannot be
        applied.
        """
        judged = replace(self.judge(decision), by_person=False)
        verdict = self.apply(judged)
        if judged.request.call is None:
            self.limit_plan(sources)
        return judged, verdict

    def limit_plan(self, sources: Sequence[str]) -> None:
        """Limit the approval of the present plan to calls of these sources."""
        if self.note is not None:
            self.note("plan_sources", [*sources])
        self.allowed_sources = [*sources]

    def _only_a_person(self, call: Call, by: str) -> bool:
        tool = call.spec.tool
        return tool is not None and (
            bool(self.rules.questions(call))
            or self.guard.floor_asks(tool, call.inputs.origins)
            or self.guard.approver(tool) != by
        )

    def timeout(self, request: ApprovalRequest) -> float | None:
        """Return the seconds that the request waits for a decision; `None`: no limit (R7.4)."""
        tools = [call.spec.tool for call in request.written_calls]
        return self.guard.timeout(tools, self._verdict_after_timeout(request))

    def _verdict_after_timeout(self, request: ApprovalRequest) -> str:
        """Return the verdict on a request that nobody decides in time: the strictest of its calls' policies. With a floor
        or a quorum, a timeout never approves.
        """
        verdicts = (self.guard.on_timeout(call.spec.tool) for call in request.written_calls)
        verdict = min(verdicts, key=_STRICTEST.index, default="reject")
        floor = request.floor or (request.call is None and self._floor_asks_in(request.plan)) or self._refused(request)
        return "reject" if verdict == "approve" and (floor or request.quorums) else verdict

    def time_out(self, request: ApprovalRequest, seconds: float) -> ApprovalVerdict:
        """Return the verdict after the timeout: the policy chooses it, but it never overrides the worker's floor
        (R7.4).
        """
        if self.note is not None:
            self.note("timeout", seconds, call=request.id)
        approval = self._settle(request)
        verdict = self._verdict_after_timeout(request)
        approval.decision, approval.by = "timeout", "timeout"
        approval.reason = f"nobody decided within {seconds:g} s"
        if request.question:
            return ApprovalVerdict(Failed(CallError("no_answer", f"nobody answered within {seconds:g} s")))
        if verdict == "approve":
            if request.call is None:
                self._approve_plan(request.plan, approval, by_person=False)
            return ApprovalVerdict()
        if verdict == "fail":
            return ApprovalVerdict(Failed(CallError("approval_timeout", approval.reason)))
        self._add_feedback(request, approval, {})
        return ApprovalVerdict(Rejected(f"rejected: {approval.reason}"))

    def release(self) -> list[ApprovalRequest]:
        """Approve the requests that need no further decision after a change of the policy, and return them (R7.7)."""
        if self.note is not None:
            self.note("released")
        met = [each for each in self.waiting.values() if self._is_met(each)]
        for request in met:
            self._complete(JudgedDecision(request, Decision(call=request.id, decision="approve")))
        free = [request for request in self.waiting.values() if not self._asks(request)]
        for request in free:
            approval = self._settle(request)
            approval.decision, approval.by, approval.reason = "approve", "policy", "the policy no longer asks"
        return [*met, *free]

    def _is_met(self, request: ApprovalRequest) -> bool:
        """Whether a request has all approvals now. One that breaks further rules names them, and waits."""
        if not request.approval.approvers or request.missing or self._refused(request) or not self.judges_anew:
            return False
        return not self.add_breaches(JudgedDecision(request, Decision(call=request.id, decision="approve")))

    def assume(self, request: ApprovalRequest) -> ApprovalVerdict:
        """Approve a request without a decision, because the run is only played again (R22.2)."""
        approval = self._settle(request)
        approval.decision, approval.by = "approve", ASSUMED
        if request.call is None:
            self._approve_plan(request.plan, approval, by_person=True)
        else:
            _approve(request.call, self.digests)
            self.rules.allow(request.call, request.breaches)
        return ApprovalVerdict()

    def drop(self, request: ApprovalRequest, reason: str, by: str) -> None:
        """Remove a request whose call will not run; a later decision about it is refused with this reason."""
        approval = self._settle(request)
        approval.decision, approval.by, approval.reason = "dropped", by, reason

    def refuse(self, raw: Json, problem: str, time: str) -> None:
        """Keep a refused decision, so that `show` prints it."""
        refusal = {"time": time, "decision": shorten(raw, 300), "problem": problem}
        self.refusals = [*self.refusals, refusal][-KEPT_REFUSALS:]

    def judge_change(self, change: Policy, tools: Mapping[str, Tool]) -> tuple[Policy, str]:
        """Return the part of a change that the run can make, and the reason why it leaves out the rest, or an empty text.

        `tools`: the run's tools, by name.
        """
        problems = []
        if loosened := self.guard.find_loosened_quorums(change, tools):
            names = ", ".join(clip(name, 60) for name in loosened[:NAMED])
            problems.append(f"a run can only add approvals to a quorum: leave out the rule of {names}")
            change = change.remove_rules(loosened)
        if surplus := self.guard.count_surplus_flows(change):
            problems.append(f"the changes of a run have at most {MAX_FLOWS} flow rules: leave out {surplus}")
            change = change.model_copy(update={"flows": []})
        return change, "; ".join(problems)

    def change_policy(self, change: Policy) -> list[ApprovalRequest]:
        """Change the run's policy, and return the waiting requests that need other approvals now."""
        if self.note is not None:
            self.note("policy", change)
        tightens = may_tighten(change, self.guard.policy.ask)
        self.is_changed |= tightens
        self.guard.loosen_or_tighten(change)
        if not self.judges_anew:
            return []
        self._is_tightened |= tightens
        return [request for request in self.waiting.values() if self._update_quorums(request)]

    def _update_quorums(self, request: ApprovalRequest) -> bool:
        """Update a request's quorums, and return whether they changed. A changed call keeps those of its earlier form."""
        if request.question:
            return False
        shown = request.call is not None
        needed, before = self._quorums(request.written_calls, shown=shown), request.quorums
        if request.revised is not None:
            needed = merge_quorums(before, needed)
        request.quorums = needed
        return needed != before

    def withdraw(self, requests: Iterable[ApprovalRequest]) -> None:
        """Remove requests that no longer need a decision."""
        for request in list(requests):
            self.waiting.pop(request.id, None)
        if not self.waiting:
            self.digests.clear()

    def _approve_plan(self, plan: Plan, approval: Approval, *, by_person: bool) -> None:
        self._approved_plan, self._approved_by_person = plan.request, by_person
        self.allowed_sources, self._is_tightened = None, False
        for call in plan.calls:
            if not plan.is_past(call):
                call.approval = approval

    def _asks(self, request: ApprovalRequest) -> bool:
        if request.call is None:
            return self.guard.shows_plans
        if request.question:
            return True
        if self.judges_anew:
            if request.revised is not None:  # the plan's approvers have not seen the change
                return True
            return self._refused(request) or self._judge_call(request.plan, request.call).reason is not None
        why = self.guard.why(
            request.call.spec.known_tool, request.call.inputs.params, origins=request.call.inputs.origins
        )
        changed = request.call.inputs.changed and self._covered_by_plan(request.plan, request.call)
        return self._refused(request) or why is not None or bool(self.rules.questions(request.call)) or bool(changed)

    def _refused(self, request: ApprovalRequest) -> bool:
        return request.call is not None and self.guard.refuses(request.call) is not None

    def plan_approval(self, plan: Plan) -> PlanApproval | None:
        """Return the approval of the whole plan for the parts of its loops; `None`: no plan is shown as a whole."""
        if self._approved_plan != plan.request:
            return PlanApproval(covers=False) if self.guard.shows_plans else None
        if self.allowed_sources is None:
            return PlanApproval(covers=not self._is_tightened, by_person=self._approved_by_person)
        return PlanApproval(sources=[*self.allowed_sources], ended=self.standing_approvals_ended)

    def begin_part(self, approval: PlanApproval) -> None:
        """Let the approval of the plan above count for the plan of this part, which is its Request 0."""
        self._approved_above = True
        self.is_changed |= approval.ended
        if approval.covers:
            self._approved_plan, self.allowed_sources = 0, approval.sources
            self._approved_by_person = approval.by_person

    def _covered_by_plan(self, plan: Plan, call: Call) -> bool:
        """Whether the call's plan was approved as a whole. A call for which the floor requires approval is covered only
        if a person has seen its parameters.
        """
        seen = call.spec.template.literal and (self._approved_by_person or not self.judges_anew)
        unseen = not seen and self.guard.floor_asks(call.spec.known_tool, call.inputs.origins)
        return self._approved_plan == plan.request and not unseen

    def _floor_asks_in(self, plan: Plan) -> bool:
        return any(
            call.spec.tool is not None and self.guard.floor_asks(call.spec.tool, call.inputs.origins)
            for call in plan.written()
        )

    def _revised_plan(self, request: ApprovalRequest, decision: Decision) -> Plan | None:
        if decision.decision in ("approve", "reject"):
            return None
        if decision.decision == "replace" or decision.calls is None or request.new_plan is None:
            raise DecisionError(f"{request.title} is a plan: approve it, reject it, or edit it with 'calls'")
        plan = request.new_plan()
        if len(decision.calls) > plan.max_calls:
            raise DecisionError(
                f"{request.title} would not be valid: {surplus_words(plan.max_calls, len(decision.calls))}"
            )
        offered = list(request.plan.calls)
        for raw in decision.calls:
            written = _written(request, raw)
            same = next((call for call in offered if call.spec.raw == written), None)
            if same is not None:
                offered.remove(same)
            plan.add(written, USER if same is None else same.inputs.origins.written)
        plan.close(drain=request.plan.drained)
        problems = [
            f"{call.id} {call.spec.tool_name}: {call.state.error.message}" for call in plan.calls if call.state.error
        ]
        if problems:
            raise DecisionError(f"{request.title} would not be valid: {'; '.join(problems[:5])}")
        return plan

    def _settle(self, request: ApprovalRequest) -> Approval:
        self.withdraw([request])
        self._decided[request.id] = request.approval
        return request.approval

    def _add_feedback(self, request: ApprovalRequest, approval: Approval, more: JsonObject) -> None:
        """Add a feedback message (R2.5)."""
        about = f"plan {request.id}" if request.call is None else request.call.as_plan_entry()
        message = {"type": "feedback", "call": about, "decision": approval.decision, **more}
        if approval.by and approval.by != "timeout":
            message["by"] = approval.by
        if approval.reason:
            message["reason"] = approval.reason
        self.feedback.append(message)

    def _unknown_request(self, call_id: str) -> str:
        if (approval := self._decided.get(call_id)) is not None and approval.decision == "dropped":
            return f"{call_id} no longer waits: {approval.reason}"
        if approval is not None:
            return f"{call_id} already has a decision: {approval.decision}{_by(approval.by)}"
        waiting = ", ".join(self.waiting)
        return f"no call {call_id!r} waits for a decision; " + (f"waiting: {waiting}" if waiting else "no call waits")


def _approve(call: Call, digests: Digests) -> None:
    """Record that a person has seen these parameters, and lets this code run with them."""
    if call.spec.known_tool.activity is not None:
        call.inputs.approved = approval_digest(call.spec.known_tool.activity, call.inputs.params, digests)


def _written(request: ApprovalRequest, call: Json) -> Any:  # of an object an object
    """Translate a call, its parameters, or a list of calls from a person's form to the engine's notation. Raises
    `DecisionError`.
    """
    held = None if request.call is None else set(held_marks(request.shown))
    try:
        return written_call(call, held)
    except ReferenceSyntaxError as error:
        raise DecisionError(f"{request.title} would not be valid: {error.message}") from None


def _by(name: str) -> str:
    return f" by {name}" if name else ""
