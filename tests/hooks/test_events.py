"""Hooks as pure rules: the table, what a function can be, what answers do, and where changed parameters come from (R10.17)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import hook, refuse
from perdure.errors import HookDefinitionError
from perdure.hooks import AfterToolCall, AgentEnd, BeforeToolCall, Refused, ToolResultPersist
from perdure.hooks.answers import HookAnswerError, HookedEvent, Hooks, answer_for_run, matches_tool
from perdure.hooks.decorator import hook_functions
from perdure.hooks.events import HOOKS, HookAnswer, HookRef
from perdure.plan import Call, take_changed
from perdure.plan._calls import CallSpec
from perdure.runs.agent import with_system_text
from perdure.tools.tool import parse_tool
from perdure.values.json import Json
from perdure.values.limits import MAX_REASON
from perdure.values.provenance import Origins
from perdure.values.templates import parse_template
from tests.cpu import takes_less

DOCS = Path(__file__).parents[2] / "docs" / "hooks.md"
_FAILS = {"closed": "closed", "open": "open", "declared": "open where it only looks (`-> None`), else closed"}


def test_the_table_in_the_docs_is_that_of_the_code() -> None:
    rows = [
        f"| `{rule.name}` | `{rule.event.__name__}` | {rule.when} | {', '.join(f'`{name}`' for name in rule.changes) or '–'} "
        f"| {rule.refused or '–'} | {_FAILS[rule.fails]} |"
        for rule in HOOKS.values()
    ]
    told = [
        line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| `") and "` | `" in line
    ]
    assert told == rows


def test_the_names_are_those_of_the_protocol_and_guards_fail_closed() -> None:
    closed = {name for name, rule in HOOKS.items() if rule.fails == "closed"}
    assert closed == {name for name in HOOKS if name.startswith("before_")} | {"message_received", "message_sending"}
    assert all(rule.answers for rule in HOOKS.values() if rule.fails != "open")
    assert not any(rule.answers for rule in HOOKS.values() if rule.fails == "open")
    assert len(HOOKS) == 16


def ref(event: str, name: str = "a:b", *, closed: bool = True, tools: list[str] | None = None) -> HookRef:
    return HookRef(event=event, name=name, tools=tools, timeout=1, closed=closed)


def test_each_hook_is_given_what_those_before_it_have_made_and_a_refusal_ends_it() -> None:
    hearing = HookedEvent(BeforeToolCall(params={"a": 1}), 100)
    hearing.hear(ref("before_tool_call", "m:one"), None)
    hearing.hear(ref("before_tool_call", "m:two"), hearing.event.changed(params={"a": 2}))
    hearing.hear(ref("before_tool_call", "m:three"), hearing.event)
    assert (hearing.event.as_json()["params"], hearing.answer.by, hearing.over) == ({"a": 2}, ["m:two"], False)
    hearing.hear(ref("before_tool_call", "m:four"), refuse(""))
    assert (hearing.answer.refused, hearing.answer.by, hearing.over) == ("no reason was given", ["m:four"], True)


def test_of_parameters_only_what_was_changed_goes_back() -> None:
    event = BeforeToolCall(params={"large": "x" * 1_000, "a": 1, "b": 2})
    hearing = HookedEvent(event, 10_000)
    hearing.hear(ref("before_tool_call"), event.changed(params={"large": "x" * 1_000, "a": True, "c": None}))
    answer = answer_for_run(event, hearing)
    assert (answer.changed, answer.gone) == ({"params": {"a": True, "c": None}}, ["b"])
    unchanged = HookedEvent(AfterToolCall(result=1), 100)
    assert answer_for_run(AfterToolCall(result=1), unchanged) is unchanged.answer


def test_what_is_no_answer_changes_nothing() -> None:
    hearing = HookedEvent(BeforeToolCall(params={"a": 1}), 100)
    for said, words in (
        ({"a": 2}, "it returned dict, but must return the changed event"),
        (AfterToolCall(), "it returned AfterToolCall"),
        (hearing.event.changed(params={"a": "x" * 200}), "bytes; the limit is 100"),
        (BeforeToolCall(params={"a": float("nan")}), "the hook's answer has a number"),
    ):
        with pytest.raises(HookAnswerError, match=words):
            hearing.hear(ref("before_tool_call"), said)
    with pytest.raises(HookAnswerError, match="must return nothing"):
        HookedEvent(AgentEnd(), 100).hear(ref("agent_end"), AgentEnd())
    with pytest.raises(HookAnswerError, match="cannot be refused"):
        HookedEvent(AgentEnd(), 100).hear(ref("agent_end"), refuse("no"))
    assert hearing.answer.changed is None


@pytest.mark.parametrize("params", [None, "x", ["all"]])
def test_what_is_made_past_the_types_of_an_event_is_no_answer(params: Any) -> None:
    hearing = HookedEvent(BeforeToolCall(params={"a": 1}), 100)
    with pytest.raises(HookAnswerError, match="params: not valid for BeforeToolCall"):
        hearing.hear(ref("before_tool_call"), hearing.event.model_copy(update={"params": params}))
    assert (hearing.event.as_json()["params"], hearing.answer.changed) == ({"a": 1}, None)
    after = HookedEvent(AfterToolCall(), 100)
    with pytest.raises(HookAnswerError, match="has a key that is not text, but int"):
        after.hear(ref("after_tool_call"), after.event.changed(result={1: 2}))


def cyclic() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def deep(levels: int, width: int = 1) -> list[Any]:
    """A list in a list, each named so often: a value of `width ** levels` items in little memory."""
    found: list[Any] = []
    for _ in range(levels):
        found = [found] * width
    return found


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (cyclic(), "nested too deeply"),
        (deep(100_000), "nested too deeply"),
        (deep(60, 2), "more than 10,000 values"),
        ("x" * 20_000, "bytes; the limit is 10,000"),
        ("\ud800", "an unpaired surrogate"),
        (10**5000, "digits"),
        (object(), "has object, which is not JSON"),
        ({1, 2}, "has set, which is not JSON"),
        (b"x", "has bytes, which is not JSON"),
        ({("a", "b"): 1}, "a key that is not text"),
    ],
    ids=["cyclic", "deep", "shared", "huge", "surrogate", "digits", "object", "set", "bytes", "keys"],
)
def test_a_result_that_no_history_can_hold_is_no_answer(result: Any, words: str) -> None:
    hearing = HookedEvent(AfterToolCall(result=1), 10_000)

    def hear() -> None:
        with pytest.raises(HookAnswerError, match=words):
            hearing.hear(ref("after_tool_call"), hearing.event.model_copy(update={"result": result}))

    assert takes_less(hear, 50)
    assert (hearing.event.as_json()["result"], hearing.answer.changed) == (1, None)


@pytest.mark.parametrize("reason", ["x" * 10**6, 5, None, "\ud800", ["a"]])
def test_a_refusal_is_a_short_text_whatever_its_hook_makes_it_of(reason: Any) -> None:
    hearing = HookedEvent(BeforeToolCall(), 100)
    for made in (refuse(reason), Refused(reason)):
        hearing.hear(ref("before_tool_call"), made)
        assert HookAnswer.model_validate_json(hearing.answer.model_dump_json()).refused == hearing.answer.refused
        assert isinstance(hearing.answer.refused, str)
        assert len(hearing.answer.refused) <= MAX_REASON


def test_what_fails_refuses_or_is_gone_past() -> None:
    hearing = HookedEvent(AfterToolCall(), 100)
    hearing.fail(ref("after_tool_call", closed=False), "is slow")
    assert ([each.hook for each in hearing.answer.failed], hearing.over) == (["a:b"], False)
    hearing.fail(ref("after_tool_call"), "is slow")
    assert hearing.answer.refused == "the hook a:b is slow"


def test_a_hook_that_says_it_returns_nothing_only_looks() -> None:
    @hook("after_tool_call")
    def looks(event: AfterToolCall) -> None: ...

    @hook("after_tool_call")
    def redacts(_: AfterToolCall) -> AfterToolCall | Refused | None:
        return None

    @hook("before_tool_call", tools=["pay"], timeout=2)
    @hook("tool_result_persist")
    def both(event: Any) -> None: ...

    assert [each.ref.closed for function in (looks, redacts) for each in hook_functions(function)] == [False, True]
    assert [(each.ref.event, each.ref.closed, each.ref.tools, each.ref.timeout) for each in hook_functions(both)] == [
        ("before_tool_call", True, ["pay"], 2.0),
        ("tool_result_persist", False, None, 10.0),
    ]


def test_a_hook_for_a_tool_meets_whatever_name_the_tool_goes_by() -> None:
    hooks = Hooks([ref("before_tool_call", tools=["pay"]), ref("before_tool_call", "all:hook"), ref("agent_end")])
    assert [each.name for each in hooks.of("before_tool_call", ("transfer", "pay"))] == ["a:b", "all:hook"]
    assert [each.name for each in hooks.of("before_tool_call", ("look",))] == ["all:hook"]
    assert not matches_tool(ref("before_tool_call", tools=[]), ("pay",))
    assert not hooks.of("after_tool_call", ("pay",))
    assert not Hooks()


def ready(params: dict[str, Any], origins: dict[str, str]) -> Call:
    schema = {"name": "pay", "properties": {"to": {"type": "string"}, "sum": {"type": "number"}}, "required": ["to"]}
    written = parse_template({"to": "†state.mail", "sum": 5})[0]
    tool = parse_tool(schema, activities=["pay"])
    call = Call.of("1.0", 0, CallSpec({"_tool": "pay", **params}, tool, params=params, template=written))
    call.inputs.origins = Origins(
        frozenset({"model"}), {name: frozenset({source}) for name, source in origins.items()}, read=True
    )
    call.inputs.approved = "a digest"
    return call


def test_what_a_hook_changes_may_come_from_all_that_it_was_given() -> None:
    call = ready({"to": "ann", "sum": 5}, {"to": "!tool:read_mail", "sum": "model"})
    assert take_changed(call, {"to": "ann", "sum": 6}) is None
    assert call.inputs.origins.params == {"to": {"!tool:read_mail"}, "sum": {"!tool:read_mail", "model"}}
    assert (call.inputs.changed, call.inputs.approved, call.spec.template.literal) == (["sum"], None, False)
    assert take_changed(call, {"to": "†state.x"}) is None  # text; and what was left out was changed too
    assert (call.inputs.params, call.inputs.changed) == ({"to": "†state.x"}, ["sum", "to"])
    assert call.spec.template.literal  # nothing of it is a reference any more


VALUES = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.text("†{}ab", max_size=4))
PARAMS = st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)
SOURCES = st.sampled_from(["user", "model", "tool:look", "!tool:read_mail", "!tool:fetch"])


@given(before=PARAMS, after=PARAMS, names=st.lists(SOURCES, min_size=4, max_size=4), wrote=SOURCES)
def test_no_hook_makes_anything_cleaner_than_what_it_was_given(
    before: dict[str, Any], after: dict[str, Any], names: list[str], wrote: str
) -> None:
    tool = parse_tool({"name": "pay"}, activities=["pay"])
    spec = CallSpec({"_tool": "pay"}, tool, params=before, template=parse_template(before)[0])
    call = Call.of("1.0", 0, spec)
    mine = {name: frozenset({source}) for name, source in zip(sorted(before), names, strict=False)}
    call.inputs.origins = Origins(frozenset({wrote}), mine, read=True)
    everything = frozenset().union(*mine.values(), {wrote})
    assert take_changed(call, after) is None
    assert call.inputs.params == after or call.inputs.params is before
    for name, value in after.items():
        same = name in before and type(before[name]) is type(value) and before[name] == value
        assert call.inputs.origins.params[name] == (mine[name] if same else everything)
        assert (name in call.inputs.changed) == (not same)
    assert not any(str(site.path[0]) in call.inputs.changed for site in call.spec.template.sites)


def test_what_does_not_fit_the_tool_changes_nothing() -> None:
    call = ready({"to": "ann", "sum": 5}, {"to": "user", "sum": "model"})
    for params in ({"sum": 5}, {"to": 5}, {"to": "ann", "_outputPath": "†state.x"}):
        assert take_changed(call, params) is not None
    assert take_changed(call, {"sum": 5, "to": "ann"}) is None
    assert (call.inputs.params, call.inputs.changed, call.inputs.approved) == ({"to": "ann", "sum": 5}, (), "a digest")
    assert take_changed(call, {"to": "ann", "sum": True}) is not None  # which Python takes for 1


def test_a_hook_whose_tools_can_be_read_once_guards_them() -> None:
    @hook("before_tool_call", tools=(name for name in ["pay"]))  # type: ignore[call-overload,untyped-decorator]
    def guard(event: BeforeToolCall) -> None:
        del event

    (found,) = hook_functions(guard)
    assert matches_tool(found.ref, ["pay"])
    assert not matches_tool(found.ref, ["order"])


def test_what_is_no_hook_is_refused_in_one_line() -> None:
    def two(one: Any, other: Any) -> None: ...
    def end(event: AgentEnd) -> AgentEnd:
        return event

    def wrong(event: AgentEnd) -> None: ...

    cases: list[tuple[Any, dict[str, Any], str]] = [
        ("before_tool", {}, "'before_tool' is not an event. Use one of: before_agent_start, "),
        ("agent_end", {"timeout": 0}, "its timeout is 0, but must be seconds, up to 300"),
        ("agent_end", {"tools": ["send"]}, "agent_end is not an event of a call: leave tools out"),
        ("after_tool_call", {"tools": "send"}, "tools is 'send', but must be a list of names"),
        ("after_tool_call", {"tools": 5}, "tools is 5, but must be a list of names"),
        ("after_tool_call", {"tools": []}, r"tools is \[\], but must be a list of names"),
        ("after_tool_call", {"tools": ["send", ""]}, r"tools is \['send', ''\], but must be a list of names"),
    ]
    for event, options, words in cases:
        with pytest.raises(HookDefinitionError, match=words):
            hook(event, **options)(wrong)
    with pytest.raises(HookDefinitionError, match="must take one argument, the event"):
        hook("agent_end")(two)  # type: ignore[arg-type]
    with pytest.raises(HookDefinitionError, match="hooks of agent_end return nothing"):
        hook("agent_end")(end)
    with pytest.raises(
        HookDefinitionError, match="its argument is annotated AgentEnd, but before_tool_call passes a BeforeToolCall"
    ):
        hook("before_tool_call")(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="cannot be changed by a hook; a hook may change params"):
        BeforeToolCall().changed(tool="other")
    assert ToolResultPersist.CHANGES == ("result",)


@pytest.mark.parametrize(
    ("context", "kept"),
    [
        ([{"type": "system", "text": "a"}, {"type": "tool", "tool": "t"}], [{"type": "tool", "tool": "t"}]),
        ([{"type": "tool", "tool": "t"}, {"type": "system", "text": "a"}], [{"type": "tool", "tool": "t"}]),
        (
            [
                {"type": "system", "text": "a"},
                {"type": "text", "role": "user", "text": "hello"},
                {"type": "system", "text": "b"},
            ],
            [{"type": "text", "role": "user", "text": "hello"}, {"type": "system", "text": "b"}],
        ),
        ([], []),
    ],
)
def test_a_system_text_takes_the_place_of_those_that_stand_first(context: list[Json], kept: list[Json]) -> None:
    changed = with_system_text({"name": "x", "context": context}, "new")
    assert changed == {"name": "x", "context": [{"type": "system", "text": "new"}, *kept]}
    assert with_system_text({"context": context}, "")["context"] == kept
