"""Random runs without a server: a plain driver plays them, decides about what waits, and keeps their logs."""

from __future__ import annotations

import contextlib
import random
from typing import Any

from perdure.approvals.decisions import parse_decision
from perdure.approvals.policy import Guard, Policy, parse_policy
from perdure.approvals.queue import ApprovalQueue
from perdure.approvals.requests import ApprovalRequest, ApprovalVerdict
from perdure.errors import CallError, DecisionError
from perdure.hooks.answers import BEFORE
from perdure.hooks.events import HookAnswer, HookRef
from perdure.models.requests import CallDelivery, RequestResult
from perdure.models.usage import RunUsage, Usage
from perdure.plan import Call, Failed, Returned
from perdure.runs.agent import Context, ModelChoice, Models, parse_agent
from perdure.runs.context import accept
from perdure.runs.request_loop import CallEnded, PlanDecided, RequestLoop, RequestStage, ShowPlan
from perdure.runs.run import RunState
from perdure.runs.run_log import RunLog, RunStart
from perdure.runs.run_player import RecordedRun
from perdure.runs.version_switches import NEWEST
from perdure.runs.views import run_view
from perdure.runs.wire import PreparedWorker, RunInput
from perdure.tools.tool import known_as, parse_tool
from tests.differential.cases import TAKES, Case, make_case

PROPERTIES = {name: {} if kind == "any" else {"type": kind} for name, kind in TAKES.items()}
POLICIES: list[dict[str, Any]] = [
    {"ask": "never"},
    {"ask": "dangerous"},
    {"ask": "unsafe"},
    {"ask": "always"},
    {"scope": "plan"},
    {"ask": "untrusted", "flows": [{"from": "tool:t1", "to": "t2", "do": "refuse"}]},
    {"ask": "dangerous", "tools": {"t0": "never", "t3": {"when": {"properties": {"n": {"minimum": 1}}}}}},
    {"flows": [{"from": "untrusted", "to": "*", "do": "ask"}, {"from": "*", "to": "t4", "do": "refuse"}]},
]

RULES: list[dict[str, Any]] = [
    {"rule": "count_at_most", "of": "t1", "count": 1},
    {"rule": "precedes", "first": "t0", "then": "t2"},
    {"rule": "never_after", "call": "t3", "after": "t1"},
]


def random_run(seed: int, *, more: bool = False) -> RecordedRun:
    """Return the record of the run of a seed. `more`: with hooks, changes of the policy, and child runs with usage."""
    return _Driver(seed, more=more).play()


class _CancelledError(Exception):
    """The run has ended in the middle of a Request."""


class _Driver:
    def __init__(self, seed: int, *, more: bool = False) -> None:
        self.chance = random.Random(seed)
        self.more = random.Random(seed) if more else None
        """The chances of hooks, changes of the policy, and child runs."""
        self.cases = [make_case(self.chance.randrange(10_000)) for _ in range(self.chance.randint(1, 3))]
        first = self.cases[0]
        config: dict[str, Any] = {"approval": self.chance.choice(POLICIES), "max_requests": 20, "refine": False}
        if self.chance.random() < 0.3:
            config["rules"] = [self.chance.choice(RULES)]
        if first.step:
            config["execution"] = "step"
        if first.parallel is not None:
            config["parallel"] = first.parallel
        context: list[dict[str, Any]] = [
            {"type": "input", "schema": {}},
            {"type": "state", "schema": {}, "state": first.state},
            *({"type": "tool", "tool": f"t{index}"} for index in range(12)),
        ]
        document: dict[str, Any] = {"name": "random", "context": context, "schema": True, "config": config}
        agent = parse_agent(document)
        declared = [{}, {"_dangerous": True}, {"_safe": True}, {"_untrusted": True}]
        tools = [
            parse_tool(
                {"name": f"t{index}", "properties": PROPERTIES, "additionalProperties": False, "_activity": f"t{index}"}
                | self.chance.choice(declared),
                activities=[f"t{index}"],
            )
            for index in range(12)
        ]
        hooks = [HookRef(name="h", event=BEFORE, tools=["t0", "t3", "t5"], timeout=5, closed=True)] if more else []
        models = Models(fast="gpt-4o-mini", smart="gpt-4o-mini")
        prepared = PreparedWorker(tools=tools, models=models, rules=NEWEST, hooks=hooks)
        given = RunInput(agent=document, input=first.input, has_input=True)
        start = RunStart(given, prepared, "", "never", [], [], parse_policy({}), "")
        queue = ApprovalQueue(guard=Guard(agent.config.approval), rules=start.rule_book(agent.config.rules))
        self.run = RunState(agent, Context(agent, first.input, has_input=True), prepared, queue)
        self.run.records.collected = []
        self.now = 0
        self.log = RunLog(lambda: f"2026-11-26T10:00:{self.now % 60:02}.000", lambda: float(self.now), start)
        self.run.keep_log(self.log)
        self.loop: RequestLoop | None = None
        self.verdicts: dict[str, ApprovalVerdict] = {}
        self.seen: dict[str, Any] = {}
        """By call, the parameters that its hook has seen."""

    def play(self) -> RecordedRun:
        over, index = False, 0
        with contextlib.suppress(_CancelledError):
            while not over and index < 8:
                self.run.situation()
                self.run.begin_request(ModelChoice("gpt-4o-mini", "test"))
                case = self.cases[index] if index < len(self.cases) else None
                over = self._request(case, last=index >= len(self.cases) - 1)
                index += 1
        view = run_view(self.run, "random")
        view.status = "completed" if over else "failed"
        return RecordedRun("random", [self.log], view)

    def _request(self, case: Case | None, *, last: bool) -> bool:
        run, goes_on = self.run, self.run.plan is not None
        run.open_plan(number := run.progress.number)
        if goes_on and self.loop is not None:
            self.loop.go_on()
        else:
            self.loop = RequestLoop(run, run.prepared.follows)
        loop = self.loop
        calls = [] if case is None else case.calls
        output = {"at": "†state"} if last else None
        result = RequestResult(calls=calls, output=output, usage=Usage(prompt_tokens=10, completion_tokens=5))
        first = self.chance.randint(0, len(calls))
        if first and loop.plan.request == number and run.approval_queue.guard.policy.scope == "calls":
            loop.deliver(CallDelivery(number=number, attempt=1, first=0, calls=calls[:first]))
            self._step()
        self._maybe_steer()
        loop.answer(result)
        self._step()
        for _ in range(500):
            if loop.stage in (RequestStage.SETTLED, RequestStage.REVISED):
                break
            if not self._act():
                loop.break_off("the run was cancelled", "")
                raise _CancelledError
        return run.close_request(loop.plan, loop.result, cut=loop.cut, is_patched=run.prepared.follows)

    def _maybe_steer(self) -> None:
        loop = self.loop
        assert loop is not None
        if self.chance.random() < 0.1 and not self.run.progress.heard:
            message: dict[str, Any] = {"id": f"m{self.now}", "text": "Hurry."}
            if accept(self.run.progress, message) is not None:
                self.run.note("message", message)
                loop.steer()
                self._step()

    def _act(self) -> bool:
        """Decide about what waits, or end a running call; whether anything was there to do."""
        loop, queue = self.loop, self.run.approval_queue
        assert loop is not None
        self.now += self.chance.randint(0, 5)
        if self.more is not None and self.more.random() < 0.1:
            change = {"ask": self.more.choice(["always", "dangerous", "never"])}
            queue.change_policy(Policy.model_validate(change))
            for request in queue.release():
                if request.call is None:
                    loop.report(PlanDecided(ApprovalVerdict()))
            if self.more.random() < 0.02:
                return False
        waiting = [*queue.waiting.values()]
        running = [call for call in loop.running.values() if call.id not in queue.waiting and loop.may_begin(call)]
        if waiting and (not running or self.chance.random() < 0.5):
            self._decide(self.chance.choice(waiting))
        elif running:
            self._end(self.chance.choice(running))
        self._step()
        return bool(waiting or running)

    def _decide(self, request: ApprovalRequest) -> None:
        loop, queue = self.loop, self.run.approval_queue
        assert loop is not None
        kind = self.chance.choice(["approve", "approve", "approve", "reject", "edit", "timeout"])
        if kind == "timeout":
            verdict = queue.time_out(request, 5.0)
        else:
            sent: dict[str, Any] = {"call": request.id, "decision": kind, "by": "ann"}
            if kind == "approve" and self.chance.random() < 0.2 and request.call is not None:
                sent["remember"] = True
            if kind == "edit":
                sent |= {"params": {"p": 7}} if request.call is not None else {"calls": [*self.cases[0].calls[:1]]}
            try:
                verdict = queue.apply(queue.judge(parse_decision(sent)))
            except DecisionError:
                verdict = queue.apply(queue.judge(parse_decision({"call": request.id, "decision": "reject"})))
        if request.call is None:
            loop.report(PlanDecided(verdict))
        elif verdict.outcome is not None:
            loop.report(CallEnded(request.call, verdict.outcome))

    def _passes_hooks(self, call: Call) -> bool:
        """Show a call to its hook, again after a person's edit; return whether the call goes on."""
        loop, chance = self.loop, self.more
        assert loop is not None
        hooked = call.spec.loop is None and bool(loop.hooks.of(BEFORE, known_as(call.spec.known_tool)))
        if chance is None or not hooked or self.seen.get(call.id) is call.inputs.params:
            return True
        answers = [HookAnswer()] * 4 + [HookAnswer(refused="no", by=["h"])]
        answers += [HookAnswer(changed={"params": {"p": 3}}, by=["h"])]
        passed = loop.let_pass(call, chance.choice(answers), "", decided=call.id in self.seen)
        self.seen[call.id] = call.inputs.params
        if passed is not None and not isinstance(passed, ApprovalRequest):
            loop.report(CallEnded(call, passed))
        return passed is None

    def _count_child(self, call: Call) -> None:
        """Count the usage of a call's child run."""
        if self.more is not None and self.more.random() < 0.3:
            usage = RunUsage()
            usage.count("gpt-4o-mini", Usage(prompt_tokens=self.more.randint(1, 99)), {})
            self.run.note("used", usage, [], call=call.id)
            self.run.progress.include(usage, [])

    def _end(self, call: Call) -> None:
        loop = self.loop
        assert loop is not None
        if not self._passes_hooks(call):
            return
        self.resume(call)
        if (refused := loop.begin(call)) is not None:
            loop.report(CallEnded(call, refused))
            return
        self.run.recorded(call, decided=True)
        self.run.note("begun", call=call.id)
        call.hold.queued = False
        self._maybe_steer()
        value: Any = self.chance.choice([1, "text", {"x": 1}, [1, 2], None])
        failed = self.chance.random() < 0.15
        self._count_child(call)
        loop.report(CallEnded(call, Failed(CallError("boom", "it failed")) if failed else Returned(value)))

    def resume(self, call: Call) -> None:
        """Let a call go on to its begin."""
        assert self.loop is not None
        call.hold.queued = True
        self.run.note("resumed", "", call=call.id)
        self.loop.plan.home(call).resume(call, "")

    def _step(self) -> None:
        loop = self.loop
        assert loop is not None
        self.now += 1
        loop.work(self.now, "")
        while loop.behind:
            self.now += 1
            loop.work(self.now, "")
        for start in loop.starts(""):
            if not isinstance(start, ShowPlan) and start.approval_request is None:
                start.call.hold.queued = True
        names, loop.abandoned, loop.ended = loop.abandoned, [], []
        gone = {str(loop.plan.request) if name == "plan" else name for name in names}
        self.run.approval_queue.withdraw([each for each in self.run.approval_queue.waiting.values() if each.id in gone])
