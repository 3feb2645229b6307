"""R5.6 on the command line: a plan is validated, simulated and drawn with no server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure import tool
from tests.support import DONE, Command, agent, harness, perdure

pytestmark = pytest.mark.asyncio(loop_scope="session")

OUTING: list[dict[str, Any]] = [
    {"_tool": "getWeather", "_outputPath": "†state.sunny || †state.notSunny"},
    {"_tool": "findPark", "why": "†state.sunny", "_outputPath": "†state.park"},
    {"_tool": "findMovie", "why": "†state.notSunny", "_outputPath": "†state.movie"},
    {"_tool": "present", "suggestion": "†state.park || †state.movie", "_outputPath": "†state.text"},
    {"_tool": "ping"},
]
NO_SERVER = {"TEMPORAL_ADDRESS": "127.0.0.1:1"}


async def plan(*arguments: str) -> Command:
    return await perdure("plan", *arguments, env=NO_SERVER)


def write(folder: Path, document: Any) -> str:
    path = folder / "plan.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


async def test_r5_6_a_message_of_native_calls_is_a_plan(tmp_path: Path) -> None:
    names = ["load", "show"]
    native = [
        {"id": "a", "type": "function", "function": {"name": "load", "arguments": '{"_outputPath": "†state.x"}'}},
        {"id": "b", "type": "function", "function": {"name": "show", "arguments": '{"what": "†state.x" /* it */}'}},
    ]
    for document in ({"tool_calls": native}, {"role": "assistant", "content": None, "tool_calls": native}, native):
        found = json.loads((await plan("validate", write(tmp_path, document), "--json")).out)
        assert (found["ok"], found["calls"], found["problems"]) == (True, 2, [])
        simulated = json.loads((await plan("simulate", write(tmp_path, document), "--json")).out)
        assert [call["tool"] for call in simulated["calls"]] == names
        assert simulated["levels"] == [["1.0"], ["1.1"]]


async def test_r5_6_validate_lists_every_problem_at_once(tmp_path: Path) -> None:
    tools = [
        {
            "name": "resize",
            "properties": {"width": {"type": "integer"}, "name": {"type": "string"}},
            "required": ["width", "name"],
        },
        {"name": "load", "properties": {"p": {}}},
    ]
    calls = [
        {"_tool": "resize", "width": "wide"},
        {"_tool": "rezise", "width": 1},
        {"_tool": "load", "p": {"deep": ["†state.a..b"]}},
        {"_tool": "load", "p": "†state.user.nam", "_outputPath": "†input.x"},
        {"_tool": "load", "p": "†state.y", "_outputPath": "†state.x"},
        {"_tool": "load", "p": "†state.x", "_outputPath": "†state.y"},
    ]
    document = agent(*tools, context=[{"type": "plan", "plan": calls}, {"type": "state", "user": {"name": "Ann"}}])
    found = await plan("validate", write(tmp_path, document))
    assert found.code == 1
    lines = found.out.splitlines()
    assert lines[:2] == [
        "1.0 resize: $ lacks 'name'",
        '1.0 resize: $.width is "wide", but must fit {"type": "integer"}',
    ]
    assert lines[2].startswith('1.1 rezise: there is no tool "rezise"; close to it are: resize')
    assert "$.p.deep[0]: malformed reference '†state.a..b': expected a name after '.' at position 9" in lines[3]
    assert "†input.x cannot be written" in lines[4]
    assert "$.p: †state.user.nam does not exist and no call writes it; near it are †state.user.name" in lines[5]
    assert "1.4 load -†state.x→ 1.5 load -†state.y→ 1.4 load" in lines[6]
    assert lines[8] == "6 calls, 8 problems"
    as_json = json.loads((await plan("validate", write(tmp_path, document), "--json")).out)
    assert [problem["call"] for problem in as_json["problems"]] == [
        "1.0",
        "1.0",
        "1.1",
        "1.2",
        "1.3",
        "1.3",
        "1.4",
        "1.5",
    ]


async def test_r10_19_an_agent_that_asks_for_skills_has_the_tool_that_reads_them(tmp_path: Path) -> None:
    plan_message = {"type": "plan", "plan": [{"_tool": "read_skill", "name": "pdf"}]}
    document = agent({"name": "look", "properties": {}}, context=[plan_message], config={"prompt": {"skills": True}})
    assert (await plan("validate", write(tmp_path, document))).code == 0
    del document["config"]
    without = await plan("validate", write(tmp_path, document))
    assert without.code == 1
    assert "read_skill" in without.out + without.err


async def test_validate_warns_of_what_is_no_error(tmp_path: Path) -> None:
    tools = [{"name": "pay", "properties": {"n": {"type": "integer"}}, "_dangerous": True}]
    call = {"_tool": "pay", "n": "71", "_outputPath": "†state.x"}
    document = write(tmp_path, agent(*tools, context=[{"type": "plan", "plan": [call, call | {"n": 1}]}]))
    found = await plan("validate", document)
    assert (found.code, found.out.splitlines()[-1]) == (0, "2 calls, no problems, 2 warnings")
    said = [line.partition(": ")[2] for line in found.out.splitlines()[:3]]
    assert said[0] == '1.0 pay: $.n was "71" and is taken as 71'
    assert said[1].startswith("1.0 pay and 1.1 pay both set †state.x without an order between them")
    assert said[2].startswith(
        "the tool 'pay' is dangerous, and two of its calls may run in parallel: set exclusive=True"
    )
    as_json = json.loads((await plan("validate", document, "--json")).out)
    assert (as_json["ok"], as_json["warnings"], as_json["hints"]) == (True, said[:2], said[2:])


async def test_r5_12_a_hint_names_a_dangerous_tool_only_where_two_of_its_calls_may_run_at_once(tmp_path: Path) -> None:
    tools: list[dict[str, Any]] = [
        {"name": name, "properties": {"n": {}}, "_dangerous": True} for name in ("pay", "send")
    ]
    first, second = {"_tool": "pay", "n": 1, "_outputPath": "†state.a"}, {"_tool": "pay", "n": 2}
    after, either = second | {"_after": "†state.a"}, second | {"_if": "input.n > 1"}
    each = {"_tool": "_for", "_each": [1, 2], "_body": [{"_tool": "pay", "n": "†item"}]}
    hinted = {
        "once": (False, [first]),
        "two tools": (False, [first, {"_tool": "send", "n": 1}]),
        "one after the other": (False, [first, {"_tool": "send", "n": "†state.a", "_outputPath": "†state.b"}, after]),
        "two": (True, [first, second]),
        "one of two with a condition": (True, [first, either]),
        "a loop over a list": (True, [each]),
        "a loop of one at a time": (False, [each | {"_parallel": 1}]),
        "a call for each item": (True, [{"_tool": "pay", "n": "†item", "_each": [1, 2]}]),
    }
    for name, (expected, calls) in hinted.items():
        document = agent(*tools, context=[{"type": "plan", "plan": calls}, {"type": "input", "input": {"n": 1}}])
        found = json.loads((await plan("validate", write(tmp_path, document), "--json")).out)
        assert found["problems"] == [], name
        assert bool(found["hints"]) is expected, name


async def test_r5_6_validate_uses_input_and_state(tmp_path: Path) -> None:
    path = write(tmp_path, [{"_tool": "load", "p": "†state.user", "q": "†input.id"}])
    assert (await plan("validate", path)).code == 1
    good = await plan("validate", path, "--state", '{"user": 1}', "--input", '{"id": 2}')
    assert (good.code, good.out) == (0, "1 call, no problems\n")
    assert "only the names of these tools are known" in good.err


async def test_r5_6_simulate_levels_branches_and_makespan(tmp_path: Path) -> None:
    path = write(tmp_path, {"calls": OUTING, "output": None})
    sunny = json.loads((await plan("simulate", path, "--json", "--durations", '{"findPark": 2.5}')).out)
    assert (sunny["levels"], sunny["makespan"], sunny["sum"]) == ([["1.0", "1.4"], ["1.1"], ["1.3"]], 4.5, 5.5)
    assert [call["status"] for call in sunny["calls"]] == ["done", "done", "skipped", "done", "done"]
    rainy = json.loads((await plan("simulate", path, "--json", "--assume", "1.0=†state.notSunny")).out)
    assert [call["status"] for call in rainy["calls"]] == ["done", "skipped", "done", "done", "done"]
    failed = json.loads(
        (await plan("simulate", path, "--json", "--assume", "1.2=failed", "--assume", "1.0=failed")).out
    )
    assert [call["status"] for call in failed["calls"]] == ["failed", "skipped", "failed", "skipped", "done"]
    text = (await plan("simulate", path)).out
    assert "level 1: 1.0, 1.4 in parallel" in text
    assert "makespan 3.00 s; calls in sequence 4.00 s" in text


async def test_r5_12_simulate_shows_which_calls_of_a_level_run_at_once(tmp_path: Path) -> None:
    tools: list[dict[str, Any]] = [{"name": "write", "_exclusive": True}, {"name": "read"}]
    for calls, words in (
        (["write", "write"], "1.0, 1.1 one after another"),
        (["write", "read"], "1.0, 1.1 in parallel"),
        (["write", "read", "write"], "1.0, 1.1, 1.2, 2 in parallel"),
    ):
        document = agent(*tools, context=[{"type": "plan", "plan": [{"_tool": name} for name in calls]}])
        text = (await plan("simulate", write(tmp_path, document))).out
        assert f"level 1: {words}\n" in text, text


async def test_r5_6_simulate_tells_what_would_need_approval(tmp_path: Path) -> None:
    calls = [{"_tool": "clean_logs", "folder": "x"}, {"_tool": "check_disk", "folder": "x"}]
    found = json.loads((await plan("simulate", write(tmp_path, calls), "--tools", "perdure.demo.tools", "--json")).out)
    assert [call["approval"] for call in found["calls"]] == [True, False]
    assert found["makespan"] == 0.6


async def test_r23_1_the_verdict_on_each_rule_is_shown_before_a_run(tmp_path: Path) -> None:
    tools = [{"name": name, "properties": {"euros": {"type": "number"}}} for name in ("check", "refund")]
    rules = [
        {"rule": "precedes", "first": "check", "then": "refund"},
        {"rule": "at_most", "of": "refund.euros", "sum": 50},
        {"rule": "needs", "role": "finance", "call": "refund"},
    ]
    check = {"_tool": "check", "_outputPath": "†state.c"}
    words = "violated: precedes(check, refund): 1.1 refund can begin although no call of check is done"
    proven = 'proven: at_most(refund.euros, sum=50, per="run")'
    for after, code in (([], 1), (["1.0"], 0)):
        pays = {"_tool": "refund", "euros": 40, **({"_after": after} if after else {})}
        asked = agent(*tools, config={"rules": rules}, context=[{"type": "plan", "plan": [check, pays]}])
        file = write(tmp_path, asked)
        checked = await plan("validate", file)
        assert (checked.code, words in checked.out, proven in checked.out) == (code, bool(code), True)
        found = json.loads((await plan("validate", file, "--json")).out)
        assert [each["status"] for each in found["rules"]] == ["violated" if code else "proven", "proven"]
        assert [each["code"] for each in found["problems"]] == ["rule_broken"] * code
    assert proven in (await plan("simulate", file)).out


async def test_r23_2_a_rule_that_asks_is_no_problem_of_the_plan(tmp_path: Path) -> None:
    rule = {"rule": "at_most", "of": "refund.euros", "sum": 50, "otherwise": "ask"}
    pays = {"_tool": "refund", "euros": 60}
    tool = {"name": "refund", "properties": {"euros": {"type": "number"}}}
    for config, approvals in (({}, [True, False]), ({"approval": {"scope": "plan"}}, [True, True])):
        plan_of = {"type": "plan", "plan": [pays, {**pays, "euros": 0}]}
        file = write(tmp_path, agent(tool, config={"rules": [rule], **config}, context=[plan_of]))
        checked = await plan("validate", file)
        assert (checked.code, "asks about 1.0: at_most(refund.euros" in checked.out) == (0, True)
        found = json.loads((await plan("validate", file, "--json")).out)
        assert (found["ok"], found["rules"][0]["status"], found["rules"][0]["asks"]) == (True, "violated", ["1.0"])
        played = json.loads((await plan("simulate", file, "--json")).out)
        assert [each["approval"] for each in played["calls"]] == approvals


async def test_r5_6_draw_as_mermaid_and_svg(tmp_path: Path) -> None:
    path = write(tmp_path, OUTING)
    drawn = (await plan("draw", path, "--assume", "1.0=failed")).out
    assert 'c1_0["1.0 getWeather"]:::failed' in drawn
    assert 'p5{{"†state.sunny"}}:::path' in drawn
    assert "c1_0 --> p5" in drawn
    assert "p5 --> c1_1" in drawn
    assert "classDef skipped" in drawn
    assert 'c1_0 -- "†state.sunny" --> c1_1' in (await plan("draw", path, "--calls")).out
    svg = tmp_path / "plan.svg"
    assert (await plan("draw", path, "--calls", "--svg", str(svg))).err == f"{svg}: 5 calls, 4 edges\n"
    assert (await plan("draw", path, "--svg", str(svg.with_name("paths.svg")))).err.startswith(
        f"{svg.with_name('paths.svg')}: 5 calls, "
    )
    root = ElementTree.fromstring(svg.read_text(encoding="utf-8"))
    labels = [
        element.text for element in root.iterfind(".//{http://www.w3.org/2000/svg}g/{http://www.w3.org/2000/svg}text")
    ]
    assert labels[::2] == [f"1.{n} {call['_tool']}" for n, call in enumerate(OUTING)]
    assert len(list(root.iter("{http://www.w3.org/2000/svg}title"))) == 4


async def test_r5_6_paths_are_nodes_and_order_is_dotted(tmp_path: Path) -> None:
    calls = [
        {"_tool": "look", "at": "†input.place", "_outputPath": "†state.seen"},
        {"_tool": "tell", "what": "{†state.seen.name} of {†state.old}", "_after": ["1.2"]},
        {"_tool": "ring"},
    ]
    path = write(tmp_path, calls)
    drawn = (await plan("draw", path, "--input", '{"place": "here"}', "--state", '{"old": 1}')).out
    names = {text: name for name, text in re.findall(r'(p\d+)\{\{"(.*?)"\}\}', drawn)}
    assert sorted(names) == ["†input.place", "†state.old", "†state.seen"]
    for line in (
        f"{names['†input.place']} --> c1_0",
        f"c1_0 --> {names['†state.seen']}",
        f'{names["†state.seen"]} -- "†state.seen.name" --> c1_1',
        f"{names['†state.old']} --> c1_1",
        'c1_2 -. "after" .-> c1_1',
    ):
        assert line in drawn
    svg = tmp_path / "plan.svg"
    assert (
        await plan("draw", path, "--input", '{"place": "here"}', "--state", '{"old": 1}', "--svg", str(svg))
    ).code == 0
    assert "stroke-dasharray" in svg.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("document", "arguments", "words"),
    [
        ({"calls": []}, [], "has no plan"),
        ({"name": "x"}, [], "has no plan"),
        ([{"_tool": "a"}], ["--state", "[]"], "--state must be a JSON object"),
        ([{"_tool": "a"}], ["--assume", "1.7=failed"], "--assume 1.7=failed: expected"),
        ([{"_tool": "a"}], ["--assume", "len(†state.x)=9999999"], "--assume len(†state.x)=9999999: expected"),
        ([{"_tool": "a"}], ["--durations", '{"a": "slow"}'], "--durations must be"),
    ],
)
async def test_bad_arguments_are_one_line(tmp_path: Path, document: Any, arguments: list[str], words: str) -> None:
    found = await plan("simulate", write(tmp_path, document), *arguments)
    assert (found.code, found.out, len(found.err.splitlines())) == (2, "", 1)
    assert words in found.err


@tool
def echo(value: Any) -> Any:
    """Give it back."""
    return value


async def test_a_live_run_is_drawn(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    calls = [
        {"_tool": "echo", "value": 1, "_outputPath": "†state.a"},
        {"_tool": "echo", "value": "†state.a"},
        {"_tool": "nope"},
    ]
    script = [{"calls": calls, "output": None}, DONE]
    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    async with harness(dev_server.client, [echo], script) as it:
        view = await it.run(agent("echo"))
        drawn = await perdure("show", view.run_id, "--draw", env=env)
        svg = await perdure("show", view.run_id, "--svg", str(tmp_path / "run.svg"), env=env)
    assert 'c1_0 -- "†state.a" --> c1_1' in drawn.out
    assert ":::invalid" in drawn.out
    assert svg.code == 0
    assert "1.1 echo" in (tmp_path / "run.svg").read_text(encoding="utf-8")


async def test_r5_6_references_of_the_output_are_checked(tmp_path: Path) -> None:
    counting = agent({"name": "count", "properties": {"team": {}}})
    (tmp_path / "agent.json").write_text(json.dumps(counting), encoding="utf-8")
    calls = [{"_tool": "count", "team": "†input.team", "_outputPath": "†state.n"}]
    outputs = {
        "†state.n || †state.none": "",
        "{†state.n.deep} of {†input.team}": "",
        "†state.m": "the output: $.n: †state.m does not exist and no call writes it; near it are †state.n",
        "†input.day": "the output: $.n: †input.day does not exist and no call writes it; near it are †input.team",
        "†statee.n": "the output: $.n: there is no †statee.n; what can be read are †input, †state",
        "†input.day || 'none'": "the output: $.n: malformed reference",
    }
    for output, problem in outputs.items():
        path = write(tmp_path, {"calls": calls, "output": {"n": output}})
        given = (path, "--agent", str(tmp_path / "agent.json"), "--input", '{"team": "a"}')
        found, simulated = await plan("validate", *given), await plan("simulate", *given)
        assert found.code == simulated.code == bool(problem), (output, found.out, found.err)
        assert found.out.startswith(problem or "1 call, no problems"), output
        assert simulated.out.startswith(problem), output
    item = {"type": "plan", "plan": calls, "output": {"n": "†state..n"}}
    (tmp_path / "agent.json").write_text(json.dumps(agent(context=[item])), encoding="utf-8")
    found = await perdure("agent", "check", str(tmp_path / "agent.json"))
    assert found.code == 2
    assert "agent.json:1: $.context[1].output.n: malformed reference '†state..n'" in found.out + found.err


async def test_a_plan_is_read_from_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "plan.json")
    text = json.dumps({"calls": [{"_tool": "ping"}]})
    found, _ = await asyncio.gather(plan("validate", str(pipe)), asyncio.to_thread(pipe.write_text, text))
    assert found.out.startswith("1 call, no problems"), found
