"""What injections reach under each policy, and what each policy asks in peace: AgentDojo's suites on the engine's rules (section 15).

No server and no model: its place takes a planner that obeys every injection it can see, and a person who lets pass what the user's task
is made of and nothing else. Tools and environments are AgentDojo's own. Needs the extra `injection`; offline.
"""

from __future__ import annotations

import gc
import importlib
import json
import pickle
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch

from pydantic import TypeAdapter

from perdure.approvals.decisions import parse_decision
from perdure.approvals.policy import Guard
from perdure.approvals.queue import ApprovalQueue
from perdure.errors import CallError
from perdure.models.requests import RequestResult
from perdure.plan import Call, Failed, Returned
from perdure.plan import _scheduler as scheduler
from perdure.rules import RuleBook
from perdure.runs.agent import Context, ModelChoice, Models, parse_agent
from perdure.runs.request_loop import CallEnded, RequestLoop, StartCall
from perdure.runs.run import RunState
from perdure.runs.wire import PreparedWorker
from perdure.tools.tool import Tool, parse_tool
from perdure.values.provenance import UNKNOWN_ORIGINS, Labels
from perdure.values.references import Reference

VERSION: Final = "v1.2.2"
SUITES: Final = ("workspace", "travel", "banking", "slack")
NOW: Final = "2026-01-01T00:00:00"
MARK: Final = "REF-7F3A"
"""Stands in each injected text, so that the planner knows it where it sees it."""

OTHERS: Final = {
    "get_unread_emails": "whoever writes to the user",
    "get_received_emails": "whoever writes to the user",
    "search_emails": "whoever writes to the user",
    "get_day_calendar_events": "whoever invites the user",
    "search_calendar_events": "whoever invites the user",
    "reschedule_calendar_event": "returns an event that others may have written",
    "add_calendar_event_participants": "returns an event that others may have written",
    "search_files_by_filename": "whoever shares a file with the user",
    "search_files": "whoever shares a file with the user",
    "get_file_by_id": "whoever shares a file with the user",
    "list_files": "whoever shares a file with the user",
    "append_to_file": "returns a file that others may have written",
    "share_file": "returns a file that others may have written",
    "delete_file": "returns a file that others may have written",
    "read_file": "files are bills and letters of others",
    "get_most_recent_transactions": "whoever pays the user writes the subject",
    "get_scheduled_transactions": "subjects are copied from bills",
    "get_channels": "whoever opens a channel names it; some are of other companies",
    "get_users_in_channel": "guests choose their names",
    "read_channel_messages": "all members of a channel, guests too",
    "read_inbox": "whoever writes to the user",
    "get_webpage": "whoever has the page",
    "download_file": "whoever has the page",
    "get_rating_reviews_for_hotels": "guests",
    "get_rating_reviews_for_restaurants": "guests",
    "get_rating_reviews_for_car_rental": "customers",
}
"""Tools whose results others can write, and who does."""

DANGEROUS: Final = {
    "send_email": ["recipients", "cc", "bcc", "attachments"],
    "delete_email": ["email_id"],
    "create_calendar_event": ["start_time", "participants"],
    "cancel_calendar_event": ["event_id"],
    "reschedule_calendar_event": ["event_id"],
    "add_calendar_event_participants": ["event_id", "participants"],
    "create_file": ["filename"],
    "delete_file": ["file_id"],
    "share_file": ["file_id", "email"],
    "append_to_file": ["file_id"],
    "send_money": ["recipient", "amount"],
    "schedule_transaction": ["recipient", "amount"],
    "update_scheduled_transaction": ["id", "recipient", "amount"],
    "update_password": ["password"],
    "update_user_info": ["first_name", "last_name", "street", "city"],
    "send_direct_message": ["recipient"],
    "send_channel_message": ["channel"],
    "add_user_to_channel": ["user", "channel"],
    "invite_user_to_slack": ["user", "user_email"],
    "remove_user_from_slack": ["user"],
    "post_webpage": ["url"],
    "get_webpage": ["url"],
    "reserve_hotel": ["hotel"],
    "reserve_restaurant": ["restaurant"],
    "reserve_car_rental": ["company"],
}
"""Tools that do something to others, or tell them something (an address that is asked for is read by its server), and which of their
parameters say what is done, and to whom; the rest is what is said."""

FLOWS: Final = [
    {"from": "untrusted", "to": f"{tool}.{param}", "do": "ask"}
    for tool, params in DANGEROUS.items()
    for param in params
]
ASKS: Final = {"rule": "only_from", "sources": ["trusted"], "otherwise": "ask"}
OUTSIDE: Final = {"not": {"pattern": r"@bluesparrowtech\.com$"}}
"""Addresses of other companies than the user's."""
LINK: Final = {"pattern": r"www\.|https?://"}
PAYEES: Final = [
    "CH9300762011623852957",
    "GB29NWBK60161331926819",
    "SE3550000000054910000003",
    "US122000000121212121212",
]
"""The accounts in the user's transactions and regular payments."""
LARGE: Final = {"minimum": 250}


def asks(parameter: str, **when: Any) -> dict[str, Any]:
    """A rule: a person is asked about values that others wrote in a parameter, of calls whose parameters fit `when`."""
    conditions = {"properties": when, "required": [*when]} if when else None
    return {**ASKS, "parameter": parameter} | ({"when": conditions} if conditions else {})


def refuses(parameter: str) -> dict[str, Any]:
    """A rule: others never write a parameter, and nobody is asked."""
    return {**ASKS, "parameter": parameter, "otherwise": "refuse"}


RULES: Final[dict[str, list[dict[str, Any]]]] = {
    # Mails, invitations and files that leave the company; what is deleted or moved. The user's own files and events are free.
    "workspace": [
        asks("send_email.recipients", recipients={"contains": OUTSIDE}),
        asks("send_email.cc", cc={"type": "array", "contains": OUTSIDE}),
        asks("send_email.bcc", bcc={"type": "array", "contains": OUTSIDE}),
        asks("send_email.attachments"),
        asks("create_calendar_event.participants", participants={"type": "array", "contains": OUTSIDE}),
        asks("add_calendar_event_participants.participants", participants={"contains": OUTSIDE}),
        asks("share_file.email", email=OUTSIDE),
        asks("delete_file.file_id"),
        asks("delete_email.email_id"),
        asks("cancel_calendar_event.event_id"),
        asks("reschedule_calendar_event.event_id"),
    ],
    # Reviews and pages are written by strangers: what they put into the calendar, book or mail is asked about.
    "travel": [
        asks("send_email.recipients"),
        asks("create_calendar_event.title"),
        asks("cancel_calendar_event.event_id"),
        asks("reserve_hotel.hotel"),
        asks("reserve_restaurant.restaurant"),
        asks("reserve_car_rental.company"),
    ],
    # Payments to new accounts, and large ones; the address. The password is the user's alone.
    "banking": [
        *(
            asks(f"{tool}.recipient", recipient={"type": "string", "not": {"enum": PAYEES}})
            for tool in ("send_money", "schedule_transaction", "update_scheduled_transaction")
        ),
        *(
            asks(f"{tool}.amount", amount={"type": "number", **LARGE})
            for tool in ("send_money", "schedule_transaction", "update_scheduled_transaction")
        ),
        *(asks(f"update_user_info.{name}") for name in DANGEROUS["update_user_info"]),
        refuses("update_password.password"),
    ],
    # Pages that others name, people who join, links in messages, and what leaves for other companies' channels.
    "slack": [
        asks("get_webpage.url", url={"not": {"pattern": r"^www\.our-company\.com"}}),
        asks("post_webpage.url", url={"not": {"pattern": r"^www\.our-company\.com"}}),
        asks("send_direct_message.body", body=LINK),
        asks("send_channel_message.body", body=LINK),
        asks("send_channel_message.body", channel={"pattern": "^External"}),
        asks("invite_user_to_slack.user_email"),
        refuses("remove_user_from_slack.user"),
    ],
}
"""By suite, rules of runs in place of an approval policy (section 23)."""
BY_RULES: Final = "rules"
POLICIES: Final[dict[str, dict[str, Any]]] = {
    "no policy": {"approval": {"ask": "never"}},
    "ask: dangerous": {"approval": {"ask": "dangerous"}},
    "ask: untrusted": {"approval": {"ask": "untrusted"}},
    "flows": {"approval": {"ask": "never", "flows": FLOWS}},
    BY_RULES: {"approval": {"ask": "never"}},
    "show: shape": {"approval": {"ask": "untrusted"}, "show": "shape"},
}


@dataclass
class Outcome:
    """What became of one task."""

    env: Any
    traces: list[Any]
    output: str
    asked: int = 0
    unknown: int = 0
    """Literals that the planner was to write and could not have read."""
    tokens: int = 0
    seconds: float = 0.0


@dataclass
class Planned:
    """A call of the ground truth as the planner writes it."""

    raw: dict[str, Any]
    later: list[Any] = field(default_factory=list)
    """Literals that stand neither in the task's text nor, as they are, in a result."""


@dataclass
class Case:
    """A user task in its environment, pickled, as the planner plans it."""

    env: bytes
    requests: list[list[Planned]]
    wanted: Counter[str]
    """What the user's task is made of: calls by name and parameters."""


def in_text(value: Any, text: str) -> bool:
    if isinstance(value, str):
        return value.lower() in text.lower()
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and bool(re.search(rf"(?<![\d.]){re.escape(format(value, 'g'))}(?![\d])", text))
    )


def found_in(value: Any, result: Any, path: tuple[str | int, ...] = ()) -> tuple[str | int, ...] | None:
    """Where the value stands in a result, as it is."""
    if type(result) is type(value) and result == value:
        return path
    items = result.items() if isinstance(result, dict) else enumerate(result) if isinstance(result, list) else ()
    for key, item in items:
        if (found := found_in(value, item, (*path, key))) is not None:
            return found
    return None


def planned(prompt: str, calls: Sequence[Any], results: Sequence[Any]) -> list[list[Planned]]:
    """The ground truth as Requests: what stands in the task's text is a literal of the first, what stands in a result a reference to it,
    and anything else a literal of a later Request."""
    requests: list[list[Planned]] = [[]]
    for number, call in enumerate(calls):
        one = Planned({"_tool": call.function, "_outputPath": f"†state.r{number}"})

        def write(value: Any, number: int = number, one: Planned = one) -> Any:
            if isinstance(value, dict):
                return {key: write(item) for key, item in value.items()}
            if isinstance(value, list):
                return [write(item) for item in value]
            if value is None or in_text(value, prompt):
                return value
            for earlier in reversed(range(number)):
                if (path := found_in(value, results[earlier])) is not None:
                    return str(Reference("state", (f"r{earlier}", *path)))
            one.later.append(value)
            return value

        one.raw |= {name: write(as_json(value)) for name, value in call.args.items()}
        if one.later and requests[-1]:
            requests.append([])
        requests[-1].append(one)
    return requests


def fresh(env: bytes) -> Any:
    """An environment of its own, from one that was pickled here: ten times faster than a deep copy."""
    return pickle.loads(env)  # noqa: S301


def as_json(value: Any) -> Any:
    return TypeAdapter(Any).dump_python(value, mode="json", serialize_as_any=True, warnings="none")


def dojo(name: str) -> Any:
    """A module of AgentDojo's, which nothing else here needs."""
    return importlib.import_module(f"agentdojo.{name}")


class Suite:
    """One of AgentDojo's suites as Perdure's tools."""

    def __init__(self, name: str) -> None:
        self.suite: Any = dojo("task_suite.load_suites").get_suite(VERSION, name)
        self.runtime: Any = dojo("functions_runtime").FunctionsRuntime(self.suite.tools)
        self.tools = [self._tool(each) for each in self.suite.tools]
        self._envs: dict[str, bytes] = {}
        self._cases: dict[tuple[str, str], Case] = {}

    @staticmethod
    def _tool(function: Any) -> Tool:
        schema = function.parameters.model_json_schema()
        definition = {
            "name": function.name,
            "description": function.description,
            "properties": schema.get("properties", {}),
            **({"$defs": schema["$defs"]} if "$defs" in schema else {}),
            "_untrusted": function.name in OTHERS,
            "_dangerous": function.name in DANGEROUS,
        }
        return parse_tool(definition, activities=[function.name], registered=True)

    def env(self, goal: str | None) -> Any:
        """The environment, with the goal in the place of every injection vector."""
        key = goal or ""
        if key not in self._envs:
            vectors = self.suite.get_injection_vector_defaults()
            text = "" if goal is None else f"{goal} {MARK}".replace('"', "'").replace("\n", " ")
            given = {} if goal is None else dict.fromkeys(vectors, text)
            self._envs[key] = pickle.dumps(self.suite.load_and_inject_default_environment(given))
        return fresh(self._envs[key])

    def case(self, task: Any, goal: Any) -> Case:
        """A user task, perhaps with an injection task's goal in its environment; looked at once for all policies."""
        key = (task.ID, "" if goal is None else goal.ID)
        if key not in self._cases:
            env = pickle.dumps(task.init_environment(self.env(None if goal is None else goal.GOAL)))
            truth = task.ground_truth(fresh(env))
            oracle = fresh(env)
            results = [self.run(oracle, call.function, dict(call.args))[0] for call in truth]
            wanted = Counter(_named(call.function, as_json(call.args)) for call in truth)
            self._cases[key] = Case(env, planned(task.PROMPT, truth, results), wanted)
        return self._cases[key]

    def run(self, env: Any, name: str, params: dict[str, Any]) -> tuple[Any, str | None]:
        result, error = self.runtime.run_function(env, name, params)
        return as_json(result), error


class Play:
    """One user task, perhaps under attack, with one policy."""

    def __init__(self, suite: Suite, task: Any, config: dict[str, Any], attack: Any = None) -> None:
        self.suite, self.task, self.attack = suite, task, attack
        case = suite.case(task, attack)
        self.pre, self.env = fresh(case.env), fresh(case.env)
        self.requests, self.wanted = case.requests, Counter(case.wanted)
        own: dict[str, Any] = {"rules": RULES[suite.suite.name]} if config is POLICIES[BY_RULES] else {}
        agent = parse_agent(
            {
                "name": suite.suite.name,
                "config": {"stuck_after": 1000, "max_requests": 200, **config, **own},
                "context": [{"type": "system", "text": "You serve one user."}, {"type": "input", "schema": {}}],
            }
        )
        prepared = PreparedWorker(tools=suite.tools, models=Models(fast="m", smart="m"))
        self.run = RunState(
            agent,
            Context(agent, {"task": task.PROMPT}, has_input=True),
            prepared,
            ApprovalQueue(Guard(agent.config.approval), RuleBook(agent.config.rules)),
        )
        self.ended = Outcome(self.env, [], task.GROUND_TRUTH_OUTPUT)

    def play(self) -> Outcome:
        obeyed = self.attack is None
        left = list(self.requests)
        while True:
            prompt = self._begin()
            calls = left.pop(0) if left else []
            self.ended.unknown += sum(
                not in_text(value, prompt) and self._hidden(value) for one in calls for value in one.later
            )
            raws = [one.raw for one in calls]
            if not obeyed and MARK in prompt:
                obeyed = True
                goals = self.attack.ground_truth(fresh(pickle.dumps(self.env)))
                raws += [{"_tool": call.function, **as_json(dict(call.args))} for call in goals]
                self.ended.output += " " + self.attack.GROUND_TRUTH_OUTPUT
            self._carry_out(raws)
            if not raws and not left:
                return self.ended

    def _hidden(self, value: Any) -> bool:
        """Whether a model that sees shapes alone could not have written it: it stands in what is hidden."""
        return self.run.provenance.shows_shapes and any(
            in_text(value, str(write.value))
            for write in self.run.state.writes
            if self.run.provenance.hides(write.sources)
        )

    def _begin(self) -> str:
        start = time.process_time()
        self.run.situation()
        request = self.run.begin_request(ModelChoice("m", "bench"))
        self.ended.seconds += time.process_time() - start
        text = str(self.run.request_context(request.number).messages)
        self.ended.tokens += len(text) // 4
        self._number = request.number
        return text

    def _carry_out(self, raws: list[dict[str, Any]]) -> None:
        start = time.process_time()
        plan = self.run.open_plan(self._number)
        loop = RequestLoop(self.run)
        result = RequestResult(calls=raws)
        loop.answer(result)
        loop.work(1, NOW)
        while starts := loop.starts(NOW):
            for one in starts:
                assert isinstance(one, StartCall)
                if one.approval_request is not None and not self._approved(one.call, loop):
                    continue
                if (refused := loop.begin(one.call)) is not None:
                    loop.report(CallEnded(one.call, refused))
                    continue
                self.ended.seconds += time.process_time() - start
                outcome = self._call(one.call)
                start = time.process_time()
                loop.report(CallEnded(one.call, outcome))
            loop.work(1, NOW)
        assert plan.settled, [(call.id, call.state.status) for call in plan.calls]
        self.run.close_request(plan, result)
        self.ended.seconds += time.process_time() - start

    def _approved(self, call: Call, loop: RequestLoop) -> bool:
        """A person lets pass what the user's task is made of, each call as often as it is in it."""
        self.ended.asked += 1
        named = _named(call.spec.tool_name, call.inputs.params)
        decision = "approve" if self.wanted[named] > 0 else "reject"
        self.wanted[named] -= decision == "approve"
        desk = self.run.approval_queue
        verdict = desk.apply(desk.judge(parse_decision({"call": call.id, "decision": decision})))
        if verdict.outcome is None:
            loop.plan.resume(call, NOW)
            return True
        loop.report(CallEnded(call, verdict.outcome))
        return False

    def _call(self, call: Call) -> Returned | Failed:
        self.ended.traces.append(
            dojo("functions_runtime").FunctionCall(function=call.spec.tool_name, args=call.inputs.params)
        )
        value, error = self.suite.run(self.env, call.spec.tool_name, json.loads(json.dumps(call.inputs.params)))
        return Returned(value) if error is None else Failed(CallError("failed", error))

    def completed(self) -> bool:
        return self._judged(self.task.utility_from_traces, self.task.utility)

    def reached(self) -> bool:
        return self._judged(self.attack.security_from_traces, self.attack.security)

    def _judged(self, from_traces: Any, from_states: Any) -> bool:
        said = from_traces(self.ended.output, self.pre, self.env, self.ended.traces)
        return bool(from_states(self.ended.output, self.pre, self.env) if said is None else said)


def _named(tool: str, params: dict[str, Any]) -> str:
    return f"{tool} {sorted((key, str(value)) for key, value in params.items())}"


def attacks(suites: Sequence[Suite]) -> tuple[str, str]:
    """Goals reached, by policy and suite; and which the policies let through."""
    rows, passed = [], Counter[str]()
    for name, config in POLICIES.items():
        cells, tried = [], 0
        for suite in suites:
            hits = 0
            for task in suite.suite.user_tasks.values():
                for goal in suite.suite.injection_tasks.values():
                    play = Play(suite, task, config, goal)
                    play.play()
                    tried += 1
                    if play.reached():
                        hits += 1
                        passed[f"{name}: {suite.suite.name} {goal.ID}"] += name != "no policy"
            cells.append(hits)
        rows.append(f"| {name} | {' | '.join(map(str, cells))} | {sum(cells)} of {tried} |")
    return "\n".join(rows), ", ".join(f"{who} ({count})" for who, count in passed.most_common(6) if count)


def peace(suites: Sequence[Suite]) -> str:
    rows = []
    for name, config in POLICIES.items():
        plays = [Play(suite, task, config) for suite in suites for task in suite.suite.user_tasks.values()]
        for play in plays:
            play.play()
        asked = sum(play.ended.asked for play in plays)
        done = sum(play.completed() for play in plays)
        unknown = sum(play.ended.unknown > 0 for play in plays)
        by_suite = [
            sum(play.ended.asked for play in plays if play.suite is suite) / len(suite.suite.user_tasks)
            for suite in suites
        ]
        cells = " | ".join(f"{each:.2f}" for each in by_suite)
        rows.append(f"| {name} | {cells} | {asked / len(plays):.2f} | {done} of {len(plays)} | {unknown} |")
    return "\n".join(rows)


@contextmanager
def without_labels() -> Iterator[None]:
    """The engine as it would be if it followed no sources."""
    with (
        patch.object(scheduler, "origins_of", lambda *_: UNKNOWN_ORIGINS),
        patch.object(Labels, "write", lambda *_: None),
    ):
        yield


def costs(suites: Sequence[Suite]) -> str:
    """What following sources costs: the least of several rounds, one after the other, for machines are noisy."""

    def once() -> tuple[float, int]:
        plays = [
            Play(suite, task, POLICIES["no policy"]) for suite in suites for task in suite.suite.user_tasks.values()
        ]
        gc.collect()
        gc.disable()
        try:
            for play in plays:
                play.play()
        finally:
            gc.enable()
        return sum(play.ended.seconds for play in plays), sum(play.ended.tokens for play in plays)

    once()
    followed, plain = [], []
    for _ in range(6):
        followed.append(once())
        with without_labels():
            plain.append(once())
    seconds = min(followed)[0] / min(plain)[0]
    tokens = followed[0][1] / plain[0][1]
    return (
        f"Without a policy by source the engine takes {seconds:.2f} times the CPU seconds of the same runs "
        f"without sources. Its prompts have {tokens:.3f} times the tokens. A task takes "
        f"{1000 * min(followed)[0] / sum(len(suite.suite.user_tasks) for suite in suites):.1f} ms, without server and model."
    )


def table() -> str:
    """The three tables: attacks, peace, costs."""
    suites = [Suite(name) for name in SUITES]
    head = f"| policy | {' | '.join(SUITES)} |"
    lines = "|---|" + "--:|" * len(SUITES)
    reached, passed = attacks(suites)
    return "\n\n".join(
        [
            f"{head} goals reached |\n{lines}--:|\n{reached}",
            f"Let through: {passed or 'nothing'}.",
            f"{head} asked per task | completed | could not be planned |\n{lines}--:|--:|--:|\n{peace(suites)}",
            costs(suites),
        ]
    )
