"""A run between its Requests: what the next Request is told, and what a finished one leaves behind (section 6).

Plain data and rules; the workflow drives it. One Request after the other: `begin_request`, a `Plan` from `open_plan`, and
`close_request` when the plan has settled.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from perdure.agents import Agent, Context
from perdure.approvals import Desk
from perdure.calls import Call
from perdure.composing import compose
from perdure.jsons import Json, JsonObject, json_path, shorten
from perdure.models import choose_model
from perdure.packing import pack, unpack
from perdure.paths import get
from perdure.plan import Plan
from perdure.prompts import chat_messages
from perdure.references import MISSING, Missing, Reference, evaluate
from perdure.requests import RequestContext, RequestInput, RequestResult, RequestView
from perdure.runs import Past, Prepared, RunSnapshot, RunView, StopReason, WaitingView
from perdure.schemas import Schema
from perdure.state import State, Write, cut
from perdure.templates import parse_template
from perdure.usage import RunUsage
from perdure.views import call_view, error_message, plan_reads, plan_writes, waiting_view

RECENT: Final = 40
"""Calls kept whole for the live table. It is made anew at every event, so its cost must not grow with the run."""


class Run:
    """The state of one run. Raises `InputError` or `AgentError` when the agent or the input cannot be used (R2.3)."""

    def __init__(self, agent: Agent, context: Context, prepared: Prepared, desk: Desk | None = None) -> None:
        self.agent = agent
        self.context = context
        self.prepared = prepared
        self.lineage = [agent.name]
        """The agents above, outermost first, and this one."""
        self.tools = {tool.name: tool for tool in prepared.tools}
        self.desk = desk or Desk()
        """What waits for a person."""
        state = context.state
        self.state = State([Write(path=(), value=context.initial_state)] if context.initial_state else [])
        self.number = 0
        """Number of the last Request begun; 0 is a plan that was given (R5.9)."""
        self.final: str | None = None
        """The limit that makes the coming Request the last, in words (R9.5)."""
        self.plan: Plan | None = None
        self.past = Past()
        self.output: Json = None
        self.stop_reason: StopReason | None = None
        self.usage = RunUsage()
        self._state_schema = None if state.data_schema is None else Schema(state.data_schema)
        self._output_schema = Schema(agent.output_schema) if isinstance(agent.output_schema, dict) else None
        self._results: JsonObject = {}
        self._messages: list[JsonObject] = []
        self._plan_message: JsonObject | None = {"type": "plan", "plan": context.plan} if context.plan else None
        self._after_error = False
        self._done = 0
        self._recent: list[Call] = []
        self._asked: tuple[int, RequestContext | None] = (0, None)

    @property
    def errors(self) -> list[JsonObject]:
        """The error messages given to the model so far."""
        return [message for message in self._messages if message["type"] == "error"]

    @property
    def count(self) -> int:
        """Calls so far, in whatever status."""
        return len(self.past.calls) + (len(self.plan.calls) if self.plan is not None else 0)

    @property
    def done(self) -> int:
        """Calls that ended well so far."""
        return self._done + (self.plan.done if self.plan is not None else 0)

    def last_calls(self) -> list[Call]:
        """The newest calls, `RECENT` at most, in their order."""
        return [*self._recent, *(self.plan.calls if self.plan is not None else ())][-RECENT:]

    def begin_request(self) -> RequestInput:
        """The next Request: its number, its model and the reason for that model (R6.1, R9.4)."""
        self.number += 1
        if self.number > self.agent.config.max_requests:
            self.final = f"the run may ask {self.agent.config.max_requests} times"
        model, reason = choose_model(
            self.prepared.models, number=self.number, after_error=self._after_error, final=self.final is not None
        )
        self.past.log.append(RequestView(number=self.number, model=model, reason=reason))
        self._asked = (self.number, self._build_context())
        # A plan that is shown as a whole has to be whole: nothing of it is wanted before the answer's end (R7.6).
        stream = self.agent.config.stream and self.desk.guard.policy.scope == "calls"
        return RequestInput(number=self.number, model=model, reason=reason, stream=stream)

    def request_context(self, number: int) -> RequestContext:
        """What Request `number` is told, for as long as it is the last one begun."""
        asked, context = self._asked
        if context is None or asked != number:
            raise KeyError(f"Request {number} is not running; the last one begun is {asked}")
        return context

    def open_plan(self, number: int) -> Plan:
        """An empty plan for the calls of a Request, which is the running one from now on."""
        self.desk.new_plan = lambda: self._new_plan(number)
        self.plan = self._new_plan(number)
        return self.plan

    def _new_plan(self, number: int, *, dry_run: bool = False) -> Plan:
        config = self.agent.config
        return Plan(
            number,
            tools={} if self.final is not None else self.tools,
            state=self.state,
            data=self.context.values(),
            state_schema=self._state_schema,
            execution=config.execution,
            max_calls=config.max_calls,
            dry_run=dry_run,
            instances=self.context.instances,
        )

    def close_request(self, plan: Plan, result: RequestResult) -> bool:
        """Take in a Request whose calls have all ended. True when the run is over: see `output`, `stop_reason` (R6.1)."""
        problems: list[JsonObject] = [
            error_message(call.as_plan_entry(), call.error.as_json()) for call in plan.errors if call.error
        ]
        problems += [error_message(call.as_plan_entry(), note.as_json()) for call in plan.calls for note in call.notes]
        if result.problem is not None:
            problems.append(error_message(None, result.problem))
        for call in plan.calls:
            if call.status == "done" and not call.writes:
                self._results[call.id] = {
                    "tool": call.tool_name,
                    "params": call.written_params,
                    "result": cut(call.result),
                }
        output, done = result.output, False
        if not plan.request and not problems and self.context.plan_output is not None:
            output, missing = self._given_output()
            problems += missing
        if output is not None:
            breaks = self._output_problems(output)
            if breaks:
                message = f"the output breaks its schema: {'; '.join(breaks[:5])}. It was {shorten(output, 300)}"
                problems.append(error_message(None, {"code": "invalid_output", "message": message}))
            else:
                self.output, done = output, True
                self.stop_reason = "output" if self.final is None else "max_requests"
        past = self.past
        past.calls.extend(map(call_view, plan.calls))
        past.edges.extend(plan.named_edges())
        past.reads |= plan_reads(plan)
        past.writes |= plan_writes(plan)
        self._recent = [*self._recent, *plan.calls][-RECENT:]
        self._done += plan.done
        self.plan = None
        self._messages.extend([*self.desk.feedback, *problems])
        self.desk.feedback.clear()
        self._after_error = bool(problems) or any(call.status == "failed" for call in plan.calls)
        if plan.calls:
            self._plan_message = {"type": "plan", "plan": [call.as_plan_entry() for call in plan.calls]}
        if plan.request:
            self._count(result)
        return done

    def _given_output(self) -> tuple[Json, list[JsonObject]]:
        """The output that was given with the plan, with its references resolved; or what it lacks (R5.9)."""
        template, malformed = parse_template(self.context.plan_output)
        now = {**self.context.values(), "state": self.state.snapshot()}

        def lookup(reference: Reference) -> Json | Missing:
            return get(now.get(reference.kind, MISSING), reference.path)

        wrong = [f"{json_path(each.path)}: {each.error}" for each in malformed]
        wrong += [
            f"{json_path(site.path)}: {site.expression} does not exist"
            for site in template.sites
            if evaluate(site.expression, lookup) is MISSING
        ]
        if wrong:
            message = f"the output given with the plan cannot be made: {'; '.join(wrong[:5])}"
            return None, [error_message(None, {"code": "invalid_output", "message": message})]
        return template.resolve(lookup), []

    def view(self, run_id: str) -> RunView:
        """The run as it stands."""
        plan, past = self.plan, self.past
        return RunView(
            run_id=run_id,
            agent=self.agent.name,
            status="running" if self.stop_reason is None else "completed",
            output=self.output,
            stop_reason=self.stop_reason,
            requests=len(self.past.log),
            usage=self.usage,
            errors=self.errors,
            calls=[*past.calls, *(map(call_view, plan.calls) if plan else ())],
            state=self.state.snapshot(),
            waiting=self.waiting(),
            refusals=self.desk.refusals,
            log=past.log,
            reads=past.reads | (plan_reads(plan) if plan else {}),
            writes=past.writes | (plan_writes(plan) if plan else {}),
            edges=[*past.edges, *(plan.named_edges() if plan else ())],
        )

    def waiting(self) -> list[WaitingView]:
        """What waits for a person, oldest first."""
        dry_run = partial(self._new_plan, dry_run=True)
        return [waiting_view(offer, self.agent.name, self.desk.guard, dry_run) for offer in self.desk.waiting.values()]

    def snapshot(self) -> RunSnapshot:
        """All that the next Request, a watcher and the result need, to go on in a new execution (R6.8)."""
        self.state.compact()
        return RunSnapshot(
            prepared=self.prepared,
            number=self.number,
            writes=self.state.writes,
            results=self._results,
            messages=self._messages,
            plan_message=self._plan_message,
            after_error=self._after_error,
            usage=self.usage,
            policy=self.desk.guard.change.as_change(),
            remembered=list(self.desk.guard.remembered),
            refusals=self.desk.refusals,
            past=pack(self.past),
        )

    @classmethod
    def restore(cls, agent: Agent, context: Context, snapshot: RunSnapshot, desk: Desk | None = None) -> Run:
        """The run as `snapshot` left it."""
        run = cls(agent, context, snapshot.prepared, desk)
        run.state = State(snapshot.writes)
        run.number, run.usage, run.past = snapshot.number, snapshot.usage, unpack(snapshot.past, Past)
        run._done = sum(call.status == "done" for call in run.past.calls)
        run._results, run._messages = snapshot.results, snapshot.messages
        run._plan_message, run._after_error = snapshot.plan_message, snapshot.after_error
        return run

    def _count(self, result: RequestResult) -> None:
        request = self.past.log[-1]
        request.status, request.usage = "done", result.usage
        self.usage.count(request.model, result.usage)

    def _build_context(self) -> RequestContext:
        config = self.agent.config
        tools = {} if self.final is not None else self.tools
        messages = chat_messages(
            self.context,
            tools,
            state=self.state.shown(),
            results=self._results,
            history=[*([self._plan_message] if self._plan_message else []), *self._messages],
            output_schema=self.agent.output_schema,
            final=self.final,
        )
        schema = compose(
            tools,
            self.agent.output_schema,
            final=self.final is not None,
            max_calls=config.max_calls,
            instances=self.context.instances,
        )
        return RequestContext(messages=messages, solution_schema=schema)

    def _output_problems(self, output: Json) -> list[str]:
        if self._output_schema is None:
            return [] if self.agent.output_schema else ["no output is allowed"]
        return self._output_schema.errors(output)
