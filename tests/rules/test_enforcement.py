"""The check of rules at each call (R23.1, R23.2), and their forms."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import AgentError, CallError, ProtocolError
from perdure.plan import Call, Failed, Returned, recorded_iterations
from perdure.rules import (
    PlanJudge,
    Rule,
    RuleBook,
    RuleRecord,
    at_most,
    count_at_most,
    judge_plan,
    merge_rules,
    never_after,
    only_from,
    parse_rules,
    precedes,
)
from perdure.tools.tool import parse_tool
from perdure.values.json import Json
from perdure.values.limits import CheckBudget
from tests.cpu import takes_less
from tests.plan.test_plan import any_tool, new_plan

TOOLS = {name: any_tool(name) for name in ("check", "refund", "mail", "delete", "backup")}


def ready(raw: dict[str, Any]) -> Call:
    """Return a call with its parameters resolved."""
    plan = new_plan(tools=TOOLS)
    plan.add(raw)
    (call,) = plan.take_ready()
    return call


def breach(book: RuleBook, raw: dict[str, Any]) -> str | None:
    found = book.refusal(ready(raw))
    return None if found is None else found.words


def begin(book: RuleBook, id: str, raw: dict[str, Any], *, ends: str = "done") -> str | None:
    """Let a call begin and end; return why it may not."""
    call = ready(raw)
    call.id = id
    if (found := book.begin(call)) is not None:
        return found.words
    call.state.status, call.state.started = ends, "now"  # type: ignore[assignment]
    book.note_ended(call, CheckBudget())
    return None


def test_r23_1_a_parameter_that_is_left_out_has_the_default_of_the_tools_schema() -> None:
    properties = {"reason": {"type": "string", "default": "other"}, "euros": {"type": "number", "default": 60}}
    tools = {
        "refund": parse_tool({"name": "refund", "properties": properties, "_activity": "refund"}, activities=["refund"])
    }
    other = {"properties": {"reason": {"const": "other"}}, "required": ["reason"]}
    for rule, count in (
        (count_at_most("refund", 0, when=other), 1),
        (at_most("refund.euros", 100), 2),
        (never_after("refund", "refund", event="done", same="reason"), 2),
        (precedes("check", "refund", same="reason"), 1),
    ):
        plan, book = new_plan(tools=TOOLS | tools), RuleBook([rule])
        plan.add({"_tool": "check", "reason": "late"})
        for number in range(count):
            plan.add({"_tool": "refund", "_after": [f"1.{number}"]})
        plan.close()
        assert judge_plan(plan, book)[0].status == "violated", rule.words
        found = None
        for _ in range(1 + count):
            for call in plan.take_ready():
                found = book.begin(call)
                plan.end(call, Returned(1))
                book.note_ended(call, CheckBudget())
        assert found is not None, rule.words


@pytest.mark.parametrize("number", [10**400, 1e308, float("inf"), float("nan")])
def test_r23_1_a_number_that_no_sum_can_take_is_refused(number: float) -> None:
    calls: list[dict[str, Any]] = [{"_tool": "refund", "euros": euros} for euros in (0.5, number)]
    for rule in (at_most("refund.euros", 100), at_most("refund.euros", 100, per="tenant/day")):
        book = RuleBook([rule])
        assert begin(book, "1.0", calls[0]) is None
        assert "refund.euros is " in (breach(book, calls[1]) or "")
        plan = new_plan(tools=TOOLS)
        for call in calls:
            plan.add(call)
        plan.close()
        assert judge_plan(plan, book)[0].status == "violated"


def test_r23_1_a_sum_takes_numbers_as_they_are_written_and_no_others() -> None:
    book = RuleBook([at_most("refund.euros", 0.3)])
    for number in range(3):
        assert begin(book, f"1.{number}", {"_tool": "refund", "euros": 0.1}) is None
    assert breach(book, {"_tool": "refund", "euros": 0}) is None
    assert "would be 0.3000000001; the limit is 0.3" in (breach(book, {"_tool": "refund", "euros": 1e-10}) or "")
    for wrong in (-1, "1", None, True, [1]):
        assert "not a number of 0 or more" in (breach(book, {"_tool": "refund", "euros": wrong}) or "")
    assert "is missing" in (breach(book, {"_tool": "refund"}) or "")


def test_r23_1_rules_hold_for_the_tools_of_mcp_servers() -> None:
    """Their names have a dot, as paths to a part of a parameter have."""
    tools = {**TOOLS, "bank.pay": any_tool("bank.pay")}
    rules: list[Rule] = [at_most("bank.pay.euros", 5), at_most("bank.pay.of.fee", 1), only_from("bank.pay.to", "user")]
    book = RuleBook(rules)

    def pays(number: int, **params: Any) -> str | None:
        plan = new_plan(tools=tools)
        plan.add({"_tool": "bank.pay", "euros": 1, "of": {"fee": 0.5}, **params})
        (call,) = plan.take_ready()
        call.id = f"1.{number}"
        if (found := book.begin(call)) is not None:
            return found.words
        call.state.status, call.state.started = "done", "now"
        book.note_ended(call, CheckBudget())
        return None

    assert pays(0) is None
    assert "bank.pay.of.fee" in (pays(1, of={"fee": 0.6}) or "")
    assert "bank.pay.euros" in (pays(2, euros=5) or "")
    assert "bank.pay.to comes from" in (pays(3, to="x") or "")
    assert pays(4) is None
    plan = new_plan(tools=tools)
    for euros in (3, 3):
        plan.add({"_tool": "bank.pay", "euros": euros, "of": {"fee": 0}})
    plan.close()
    assert [each.status for each in judge_plan(plan, RuleBook(rules[:2]))] == ["violated", "proven"]
    assert [each.status for each in judge_plan(plan, RuleBook([at_most("bank.pay.euros", 6)]))] == ["proven"]


def test_r23_1_a_failed_call_counts_and_one_that_never_began_does_not() -> None:
    book = RuleBook([count_at_most("mail", 2)])
    assert begin(book, "1.0", {"_tool": "mail"}, ends="failed") is None
    assert begin(book, "1.1", {"_tool": "mail"}, ends="skipped") is None
    assert begin(book, "1.2", {"_tool": "mail"}) is None
    assert begin(book, "1.3", {"_tool": "mail"}) == "the calls of mail would be 3; the limit is 2"


def test_r23_1_records_join_without_counting_twice() -> None:
    rules: list[Rule] = [at_most("refund.euros", 100), precedes("check", "refund", same="customer")]
    child = RuleBook(rules, RuleRecord(), prefix="run/1.0/")
    begin(child, "1.0", {"_tool": "check", "customer": "ann"})
    assert begin(child, "1.1", {"_tool": "refund", "customer": "ann", "euros": 60}) is None
    parent = RuleBook(rules, prefix="run/")
    for _ in range(2):
        parent.take_back(child.record.model_copy(deep=True))
    assert begin(parent, "2.0", {"_tool": "refund", "customer": "ann", "euros": 40}) is None
    assert 'no call of check is done for customer="bob"' in (
        breach(parent, {"_tool": "refund", "customer": "bob", "euros": 0}) or ""
    )
    summed = RuleBook(rules, parent.record.summed(rules))
    assert breach(summed, {"_tool": "refund", "customer": "ann", "euros": 0}) is None
    assert "would be 101" in (breach(summed, {"_tool": "refund", "customer": "ann", "euros": 1}) or "")


def test_r23_1_of_a_run_below_that_nobody_knows_the_worst_is_assumed() -> None:
    book = RuleBook([count_at_most("mail", 5), never_after("delete", "backup"), precedes("check", "refund")])
    book.take_back(None)
    assert breach(book, {"_tool": "mail"}) == "the calls of mail would be 6; the limit is 5"
    assert breach(book, {"_tool": "delete"}) == "a call of backup has begun"
    assert breach(book, {"_tool": "refund"}) == "no call of check is done"


def test_r23_1_a_condition_limits_a_rule_to_calls_that_fit_it() -> None:
    book = RuleBook([count_at_most("refund", 0, when={"properties": {"euros": {"minimum": 100}}})])
    assert breach(book, {"_tool": "refund", "euros": 99}) is None
    assert breach(book, {"_tool": "refund", "euros": 100}) == "the calls of refund would be 1; the limit is 0"
    (found,) = book.breaches(ready({"_tool": "refund", "euros": 100}))
    assert (
        'the rule count_at_most(refund, 0, per="run", when={"properties": {"euros": {"minimum": 100}}})'
        in found.message
    )


def test_rules_are_data_with_one_form() -> None:
    written: Any = [
        {"rule": "precedes", "first": "check", "then": "refund", "same": {"id": "customer"}},
        {"rule": "only_from", "parameter": "pay.iban", "sources": "trusted"},
    ]
    rules = parse_rules(written)
    assert rules == [precedes("check", "refund", same={"id": "customer"}), only_from("pay.iban", "trusted")]
    assert parse_rules([rule.model_dump(exclude_defaults=True) for rule in rules]) == rules
    assert merge_rules(rules, rules, [count_at_most("mail", 1)]) == [*rules, count_at_most("mail", 1)]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"rule": "precede", "first": "a", "then": "b"}, "rule"),
        ({"rule": "at_most", "of": "refund", "sum": 1}, "of"),
        ({"rule": "at_most", "of": "refund.euros", "sum": -1}, "sum"),
        ({"rule": "only_from", "parameter": "pay.iban", "sources": ["nobody"]}, "'nobody' is not a source"),
        ({"rule": "count_at_most", "of": "a", "count": 1, "when": {"type": "nothing"}}, "JSON Schema"),
        ({"rule": "needs", "role": "x", "call": "a", "more": 1}, "more"),
    ],
)
def test_a_wrong_rule_is_named_with_its_place(wrong: Any, words: str) -> None:
    with pytest.raises(AgentError, match=words) as refused:
        parse_rules([wrong], source="rules.json")
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith("rules.json: ")


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        (lambda: at_most("refund", 5), 'at_most: of: must be TOOL.PARAMETER, such as refund.euros, not "refund"'),
        (
            lambda: only_from("pay", "trusted"),
            'only_from: parameter: must be TOOL.PARAMETER, such as refund.euros, not "pay"',
        ),
        (lambda: precedes("a", "b", sme="x"), 'precedes: sme: "sme" is not a known key; did you mean "same"?'),
        (
            lambda: count_at_most("a", 1, otherwise="aks"),
            "count_at_most: otherwise: must be 'refuse' or 'ask', not \"aks\"; did you mean 'ask'?",
        ),
        (lambda: only_from("a.b", ["trusted"]), "only_from: sources.0: must be text"),  # type: ignore[arg-type]
        (
            lambda: count_at_most("a", 1, per="tenant/day", otherwise="ask"),
            "count_at_most: otherwise: a person cannot approve a sum per tenant/day: use refuse",
        ),
    ],
)
def test_the_python_form_refuses_with_one_line_what_the_json_form_refuses(rule: Any, line: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        rule()
    assert str(refused.value) == line
    with pytest.raises(ProtocolError, match="per: must be 'run', 'session', 'tenant/day' or 'tenant/month'"):
        at_most("a.b", 1, per="day")


def test_500_calls_with_50_rules_take_little_time() -> None:
    plan = new_plan({}, tools=TOOLS)
    for n in range(100):
        plan.add({"_tool": "check", "customer": n, "_outputPath": f"†state.c{n}"})
        plan.add({"_tool": "refund", "euros": 5, "customer": n, "x": f"†state.c{n}"})
        plan.add({"_tool": "backup", "_outputPath": f"†state.b{n}"})
        plan.add({"_tool": "delete", "x": f"†state.b{n}", "id": n})
        plan.add({"_tool": "mail", "to": f"†state.c{n}.mail"})
    plan.close()
    rules: list[Rule] = []
    for n in range(10):
        rules += [
            precedes("check", "refund", same="customer", when={"minProperties": n} if n else None),
            never_after("delete", "backup", event="failed", when={"minProperties": n} if n else None),
            at_most("refund.euros", 500 + n),
            count_at_most("mail", 100 + n),
            precedes("backup", "delete", when={"maxProperties": 10 + n}),
        ]
    assert takes_less(lambda: judge_plan(plan, RuleBook(rules)), 60)  # a tenth of a second is about 25
    verdicts = judge_plan(plan, RuleBook(rules))
    assert len(verdicts) == 50
    assert [each.status for each in verdicts[:5]] == ["proven", "violated", "proven", "proven", "proven"]


def test_a_plan_that_is_judged_call_by_call_takes_little_time() -> None:
    """As `RequestLoop` does for calls that arrive one by one."""

    def judge_all() -> None:
        plan = new_plan({}, tools=TOOLS)
        rules: list[Rule] = [precedes("check", "refund"), at_most("refund.euros", 10_000)]
        judge = PlanJudge(plan, RuleBook(rules))
        for n in range(250):
            plan.add({"_tool": "check", "_outputPath": f"†state.c{n}"})
            assert judge.breach(plan.calls[-1]) is None
            plan.add({"_tool": "refund", "euros": 5, "x": f"†state.c{n}"})
            assert judge.breach(plan.calls[-1]) is None

    assert takes_less(judge_all, 60)


def test_ends_of_calls_change_the_verdicts() -> None:
    calls: Any = [{"_tool": "check", "_outputPath": "†state.c"}, {"_tool": "refund", "_after": ["ended 1.0"]}]
    plan, book = new_plan({}, tools=TOOLS), RuleBook([precedes("check", "refund")])
    for raw in calls:
        plan.add(raw)
    plan.close()
    (check,) = plan.take_ready()
    assert judge_plan(plan, book)[0].status == "violated"
    book.begin(check)
    plan.end(check, Failed(CallError("boom", "it broke")))
    book.note_ended(check, CheckBudget())
    assert [each.status for each in judge_plan(plan, book)] == ["violated"]
    plan = new_plan({}, tools=TOOLS)
    for raw in calls:
        plan.add(raw)
    plan.close()
    (check,) = plan.take_ready()
    book.begin(check)
    plan.end(check, Returned(1))
    check.state.started = "now"
    book.note_ended(check, CheckBudget())
    assert [each.status for each in judge_plan(plan, book)] == ["proven"]


def test_r23_1_a_tool_that_never_comes_twice_may_come_once() -> None:
    for rule in (never_after("mail", "mail"), never_after("mail", "mail", same="to")):
        book = RuleBook([rule])
        calls = [ready({"_tool": "mail", "to": to}) for to in ("ann", "ann", "bob")]
        for number, call in enumerate(calls):
            call.id = f"1.{number}"
        assert book.begin(calls[0]) is None
        assert book.obstacle(calls[0]) is None, "what it began itself is no reason"
        assert book.begin(calls[1]) is not None
        assert (book.begin(calls[2]) is None) is (rule.same == "to")


@pytest.mark.parametrize("counts_each", [True, False])
def test_r23_1_what_two_lost_runs_may_have_spent_adds_up(*, counts_each: bool) -> None:
    rule = at_most("refund.euros", 100)
    book = RuleBook([rule], counts_each=counts_each)
    held = ready({"_tool": "refund", "euros": 40})
    assert book.begin(held) is None
    book.take_back(None, [rule])  # the first may have spent the other 60
    book.note_held(held)
    book.take_back(None, [rule])  # and the second the 40 that were free again
    assert book.used(rule) == (100 if counts_each else 40)
    assert (breach(book, {"_tool": "refund", "euros": 1}) is not None) is counts_each


def test_r23_1_what_a_lost_run_has_done_forbids_every_value() -> None:
    book = RuleBook([never_after("delete", "backup", event="failed", same="base")])
    assert begin(book, "1.0", {"_tool": "backup", "base": "x"}, ends="failed") is None
    assert breach(book, {"_tool": "delete", "base": "y"}) is None
    assert breach(book, {"_tool": "delete", "base": "x"}) == 'a call of backup has failed for base="x"'
    book.take_back(None)
    assert breach(book, {"_tool": "delete", "base": "y"}) is not None
    assert breach(book, {"_tool": "delete"}) is not None


ERRORS: list[Json] = [{"error": {"index": index, "code": "cost"}} for index in range(1, 101)]
NOT_RUN = Returned([1, *ERRORS])
ALL_FAILED = Failed(CallError("iterations_failed", "all 101 iterations failed; the first: check: no such order"))


@pytest.mark.parametrize(
    ("body", "outcome", "precedes_holds"),
    [
        (["check"], NOT_RUN, [True, False]),
        (["check"], ALL_FAILED, [False, False]),
        (["check", "mail"], NOT_RUN, [True, False]),
        (["check", "mail"], ALL_FAILED, [False, False]),
    ],
)
def test_r23_1_a_failed_iteration_of_a_recorded_loop_satisfies_no_rule(
    body: list[str], outcome: Returned | Failed, precedes_holds: list[bool]
) -> None:
    """In a body of several calls any of them may be the one that failed."""
    calls = [{"_tool": tool, "order": "†item"} for tool in body]
    loop = {"_each": [7, 8, *range(100, 199)]} | (calls[0] if len(calls) == 1 else {"_tool": "_for", "_body": calls})
    call = ready(loop)
    call.state.iterations = recorded_iterations(call, {}, outcome)
    call.state.started, call.state.outcome = "now", outcome
    for each in call.state.iterations:
        each.state.started = "now"
    book = RuleBook(
        [precedes("check", "refund", same="order"), never_after("delete", "check", event="done", same="order")]
    )
    book.note_begun(call)
    book.note_ended(call, CheckBudget())
    for order, holds in zip((7, 8), precedes_holds, strict=True):
        assert (breach(book, {"_tool": "refund", "order": order}) is None) == holds
        forbidden = breach(book, {"_tool": "delete", "order": order}) is not None
        assert forbidden == (holds or len(body) > 1)
