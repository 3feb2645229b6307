"""Evaluations on a real server (R22.3, R22.4): runs of cases, scores, judges, restarts, and the sample of production."""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import Evaluator, EvaluatorContext, LLMJudge, MaxModelRequests, ToolCorrectness
from temporalio.client import WorkflowFailureError
from temporalio.testing import WorkflowEnvironment

from perdure import Agent, Perdure, Selection, tool
from perdure.client.evaluations import fetch_score
from perdure.errors import RunError, RunExistsError, SettingsError
from perdure.evals import Approvals, Flows
from perdure.runs.evaluation import EVALUATION_WORKFLOW, scored_id
from perdure.testing.scripted_model import ChatRequest, ScriptedModel, Turn, refusal
from tests.support import Harness, check_replays, failed_tasks, harness, impatient, perdure, registry
from tests.timeouts import HANG
from tests.workflows.test_resets import temporal

pytestmark = pytest.mark.asyncio(loop_scope="session")
impatient_server = impatient(60)
REFUNDED: list[int] = []


@tool(safe=True)
def look(order: str) -> dict[str, Any]:
    """Look an order up."""
    return {"euros": len(order)}


@tool(dangerous=True)
def refund(euros: int) -> str:
    """Pay money back."""
    REFUNDED.append(euros)
    return f"paid {euros}"


@dataclass
class SaysPaid(Evaluator[Any, Any, Any]):
    """An evaluator of the application's own."""

    def evaluate(self, ctx: EvaluatorContext[Any, Any, Any]) -> bool:
        return "paid" in str(ctx.output)


CLERK = Agent("clerk", instructions="You pay refunds.", tools=[look, refund], output=str)
PLAN = [
    {"_tool": "look", "order": "17", "_outputPath": "†state.order"},
    {"_tool": "refund", "euros": "†state.order.euros", "_outputPath": "†state.paid"},
]


def model(request: ChatRequest) -> Turn:
    """Refund an order by a plan; the model `lazy` does nothing."""
    if request.model == "lazy":
        return Turn({"calls": [], "output": "no"}, usage=(50, 5))
    begun = "†state.paid" in json.dumps(request.messages, ensure_ascii=False) or "paid 2" in request.text
    return Turn({"calls": [], "output": "paid"} if begun else {"calls": PLAN, "output": None}, usage=(900, 100))


def dataset(count: int = 1, *evaluators: Evaluator[Any, Any, Any]) -> Dataset[Any, Any, Any]:
    cases = [Case(name=f"order {n}", inputs={"order": str(n)}) for n in range(count)]
    return Dataset[Any, Any, Any](name="orders", cases=cases, evaluators=evaluators)


def with_evaluators(*kinds: type[Any]) -> Any:
    made = registry([look, refund])
    made.evaluators += kinds
    return made


def api(it: Harness) -> Perdure:
    return Perdure(it.client, task_queue=it.task_queue)


def fresh() -> str:
    return f"eval-{uuid.uuid4().hex[:8]}"


async def replays(it: Harness, *ids: str) -> None:
    for each in ids:
        await check_replays(await it.client.get_workflow_handle(each).fetch_history())


async def test_each_case_runs_with_each_model_and_is_scored(dev_server: WorkflowEnvironment) -> None:
    checks = (ToolCorrectness(["look", "refund"]), Flows([["look", "refund"]]), Approvals(["refund"]), SaysPaid())
    name, before = fresh(), len(REFUNDED)
    async with harness(dev_server.client, [], model, registry=with_evaluators(SaysPaid)) as it:
        evaluation = await api(it).evaluate(
            CLERK, dataset(2, *checks), models=["good", "lazy"], repeat=2, decide="approve", id=name
        )
        seen: list[Any] = []
        result = await evaluation.wait(on_progress=seen.append, pause=0.05)
        progress = await evaluation.progress()
        await replays(it, name, scored_id(f"{name}-1"), f"{name}-1")
        again = await api(it).evaluate(
            CLERK, dataset(2, *checks), models=["good", "lazy"], repeat=2, decide="approve", id=name
        )
        assert await again.wait() == result
        with pytest.raises(RunExistsError, match="another evaluation has the id"):
            await api(it).evaluate(CLERK, dataset(1), id=name)
    good, lazy = result.totals()
    assert (good.rate.passed, good.rate.runs, lazy.rate.passed, lazy.rate.runs) == (4, 4, 0, 4)
    assert (good.tokens, lazy.tokens) == (4 * 2000, 4 * 55)
    assert lazy.failed == {"ToolCorrectness": 4, "Flows": 4, "Approvals": 4, "SaysPaid": 4}
    assert [score.run_id for score in result.scores] == [f"{name}-{n}" for n in range(1, 9)]
    assert (progress.total, progress.done, progress.passed, progress.running) == (8, 8, 4, [])
    assert seen
    assert len(REFUNDED) == before + 4


async def test_nobody_approves_in_an_evaluation_unless_it_says_so(dev_server: WorkflowEnvironment) -> None:
    before = len(REFUNDED)
    async with harness(dev_server.client, [look, refund], model) as it:
        evaluation = await api(it).evaluate(CLERK, dataset(1, Approvals(["refund"])), repeat=1, id=fresh())
        result = await evaluation.wait()
        view = await api(it).get_run(result.scores[0].run_id).view()
    assert result.scores[0].assertions == {"Approvals": True}
    assert next(call.status for call in view.calls if call.tool == "refund") == "rejected"
    assert len(REFUNDED) == before


async def test_an_evaluation_uses_up_no_standing_approval(dev_server: WorkflowEnvironment) -> None:
    tenant, before = uuid.uuid4().hex, len(REFUNDED)
    plan = {"type": "plan", "plan": PLAN, "output": "†state.paid"}
    monthly = Agent.of(
        {
            "name": "monthly",
            "config": {"start": "plan"},
            "context": [{"type": "tool", "tool": "look"}, {"type": "tool", "tool": "refund"}, plan],
            "metadata": {"procedure": {"version": 1, "digest": "sha256:of-somebody", "runs": ["r-1"]}},
        }
    )
    async with harness(dev_server.client, [look, refund], lambda _: {"calls": [], "output": "no"}) as it:
        await api(it).grant_standing_approval(monthly, uses=2, until="2999-12-31", by="ann", tenant=tenant)
        evaluation = await api(it).evaluate(monthly, dataset(1, Approvals(["refund"])), tenant=tenant, id=fresh())
        result = await evaluation.wait()
        [standing] = await api(it).standing_approvals(tenant=tenant)
        await replays(it, result.scores[0].run_id)
    assert result.scores[0].assertions == {"Approvals": True}
    assert (standing.used, len(REFUNDED)) == (0, before)


async def test_an_evaluation_informs_nobody_of_the_requests_of_delegates(dev_server: WorkflowEnvironment) -> None:
    """Its worker needs no route that a delegate's file names."""
    before = len(REFUNDED)
    clerk = Agent("clerk", tools=[look, refund], notify={"approval_requested": ["ops"]})
    desk = Agent("desk", tools=[clerk])
    asks = {"calls": [{"_tool": "clerk", "request": "Refund 17.", "_outputPath": "†state.done"}], "output": None}
    outer, inner = [asks, {"calls": [], "output": "done"}], [{"calls": PLAN, "output": "†state.paid"}]

    def script(request: ChatRequest) -> Any:
        return (inner if "Refund 17." in request.text and '"order"' not in request.text else outer).pop(0)

    async with harness(dev_server.client, [look, refund], script) as it:
        evaluation = await api(it).evaluate(desk, dataset(1), decide="approve", id=fresh())
        result = await evaluation.wait()
        run = result.scores[0].run_id
        above, below = [await api(it).get_run(each).view() for each in (run, f"{run}/1.0")]
        await replays(it, run, f"{run}/1.0")
    assert [call.status for call in above.calls] == ["done"], above.errors
    assert (below.status, below.notifications, len(REFUNDED)) == ("completed", [], before + 1)


async def test_a_run_that_fails_or_is_refused_is_scored_with_its_status_and_error(
    dev_server: WorkflowEnvironment,
) -> None:
    def ends(request: ChatRequest) -> Turn:
        return refusal("I will not.") if request.model == "shy" else Turn({"calls": PLAN, "output": None})

    once = Agent("clerk", tools=[look, refund], approval={"ask": "never"}, max_requests=4)
    async with harness(dev_server.client, [look, refund], ends) as it:
        evaluation = await api(it).evaluate(once, dataset(1), models=["busy", "shy"], id=fresh())
        result = await evaluation.wait()
    assert [(score.status, score.error) for score in result.scores] == [
        ("failed", "the run may ask 4 times, and the last answer was not a valid output"),
        ("refused", "I will not."),
    ]
    busy, shy = result.totals()
    assert (busy.failed, shy.failed) == ({"run": 1}, {"run": 1})


async def test_a_run_that_takes_too_long_is_not_passed(dev_server: WorkflowEnvironment) -> None:
    async with harness(dev_server.client, [look, refund], model) as it:
        evaluation = await api(it).evaluate(
            CLERK, dataset(1, MaxModelRequests(9)), decide="wait", timeout=1, id=fresh()
        )
        (score,) = (await evaluation.wait()).scores
    assert (score.status, score.passed, score.problems) == ("timed_out", False, [])


async def test_the_runs_of_a_tenants_evaluation_are_in_the_tenants_lists(dev_server: WorkflowEnvironment) -> None:
    tenant = uuid.uuid4().hex
    case = Case(name="order", inputs={"order": "1"}, metadata={"sender": "ann"})
    async with harness(dev_server.client, [look, refund], model) as it:
        evaluation = await api(it).evaluate(
            Agent("clerk", tools=[look, refund], priority=4),
            Dataset[Any, Any, Any](name="orders", cases=[case]),
            decide="wait",
            tenant=tenant,
            id=fresh(),
        )
        async with asyncio.timeout(HANG):
            while True:  # the server's index is a moment late
                if waiting := (await api(it).approvals(tenant=tenant)).waiting:
                    break
                await asyncio.sleep(0.02)
        listed = [each async for each in api(it).list_runs(Selection(sender="ann", tenant=tenant))]
        described = await it.client.get_workflow_handle(f"{evaluation.id}-1").describe()
        await evaluation.cancel()
    place = described.raw_description.workflow_execution_info.priority
    assert (place.priority_key, place.fairness_key) == (4, tenant)
    assert [each.run_id for each in waiting] == [each.id for each in listed] == [f"{evaluation.id}-1"]


async def test_an_evaluation_goes_on_with_another_worker_where_the_first_one_left_it(
    dev_server: WorkflowEnvironment,
) -> None:
    name, queue, third = fresh(), f"test-{uuid.uuid4().hex[:8]}", asyncio.Event()

    def until_third(request: ChatRequest) -> Turn:
        if request.number == 7:  # the third run: each asks three times
            third.set()
        return model(request)

    async with harness(dev_server.client, [look, refund], until_third, task_queue=queue) as it:
        await api(it).evaluate(CLERK, dataset(6, MaxModelRequests(3)), parallel=1, id=name)
        await asyncio.wait_for(third.wait(), HANG)
    async with harness(dev_server.client, [look, refund], model, task_queue=queue) as it:
        result = await api(it).get_evaluation(name).wait()
        runs = {score.run_id for score in result.scores}
        listed = [run.id async for run in api(it).list_runs(Selection(agent="clerk", since="1h")) if run.id in runs]
    assert len(runs) == len(listed) == 6  # none ran twice
    assert result.is_at_least(1.0)


async def test_a_long_evaluation_continues_as_new_and_keeps_its_order(impatient_server: WorkflowEnvironment) -> None:
    name = fresh()
    async with harness(impatient_server.client, [look, refund], model) as it:
        evaluation = await api(it).evaluate(
            CLERK, dataset(12, MaxModelRequests(3)), parallel=2, models=["lazy"], id=name
        )
        result = await evaluation.wait()
        described = await evaluation.handle.describe()
        await replays(it, name)
    assert described.raw_info.first_run_id != described.run_id
    assert described.history_length < 150
    assert [score.case for score in result.scores] == [*range(12)]
    assert [score.run_id for score in result.scores] == [f"{name}-{n}" for n in range(1, 13)]


async def test_an_evaluator_that_the_worker_lacks_fails_the_evaluation_at_once(dev_server: WorkflowEnvironment) -> None:
    name = fresh()
    async with harness(dev_server.client, [look, refund], model) as it:
        evaluation = await api(it).evaluate(CLERK, dataset(1, SaysPaid()), id=name)
        with pytest.raises(RunError, match=r"'SaysPaid'.*--tools modules"):
            await evaluation.wait()
        assert it.model.requests == []


async def test_a_judge_is_a_model_that_is_asked_once_more_when_it_was_away(
    dev_server: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = json.dumps({"reason": "it names the sum", "pass": True, "score": 0.75})
    away = iter([True])

    def judge(request: ChatRequest) -> Turn:
        if next(away, False):
            return Turn("the judge is away", status=400)
        return Turn(tool_calls=[(request.body["tools"][0]["function"]["name"], verdict)])

    async with ScriptedModel(judge, strict=False) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "scripted")
        rubric = LLMJudge("The answer names the sum.", model="openai-chat:judge", score={"evaluation_name": "sum"})
        async with harness(dev_server.client, [look, refund], model) as it:
            evaluation = await api(it).evaluate(CLERK, dataset(1, rubric), models=["lazy"], id=fresh())
            (score,) = (await evaluation.wait()).scores
        assert "The answer names the sum." in server.requests[-1].text
    assert (score.scores, score.assertions) == ({"sum": 0.75}, {"LLMJudge_pass": True})
    assert score.reasons["LLMJudge_pass"] == "it names the sum"
    assert score.passed


async def scored(it: Harness, run_id: str) -> Any:
    """The score, once it is there."""
    await asyncio.wait_for(it.client.get_workflow_handle(scored_id(run_id)).result(), HANG)
    return await fetch_score(it.client, run_id)


async def test_r22_4_finished_runs_are_scored_beside_their_result_and_so_many_a_day(
    dev_server: WorkflowEnvironment,
) -> None:
    tenant = uuid.uuid4().hex
    watched = Agent(
        f"clerk-{tenant[:8]}",
        instructions="You pay refunds.",
        tools=[look, refund],
        evaluate={"evaluators": [{"MaxCost": 0.01}, "SaysPaid"], "per_day": 2},
        prices={"good": {"prompt": 10.0, "completion": 10.0}},
        models={"fast": "good", "smart": "good"},
        approval={"ask": "never"},
    )
    async with harness(dev_server.client, [], model, registry=with_evaluators(SaysPaid)) as it:
        runs = []
        for _ in range(3):
            runs.append(await api(it).start(watched, {"order": "17"}, tenant=tenant))
            assert await runs[-1].result() == "paid"
            await scored(it, runs[-1].id)
        scores: list[Any] = [await run.score() for run in runs]
        await replays(it, runs[0].id, scored_id(runs[0].id))
        listed: list[str] = []
        query = f"PerdureAgent='{watched.name}' AND PerdureScore = 0.5"
        async with asyncio.timeout(HANG):
            while len(listed) < 2:
                await asyncio.sleep(0.05)  # lists follow a moment later
                listed = [each.id async for each in it.client.list_workflows(query)]
    first, second, third = scores
    assert first.assertions == {"MaxCost": False, "SaysPaid": True}
    assert first.cost == pytest.approx(0.02)
    assert second.share == 0.5
    assert (third.status, third.assertions) == ("not scored", {})
    assert "the limit is 2 (scores of the agent" in third.error
    assert sorted(listed) == sorted(scored_id(run.id) for run in runs[:2])


async def test_r22_4_a_run_of_a_tenant_with_a_long_name_is_scored(dev_server: WorkflowEnvironment) -> None:
    watched = Agent("clerk", tools=[look, refund], evaluate={"evaluators": ["SaysPaid"]}, approval={"ask": "never"})
    async with harness(dev_server.client, [], model, registry=with_evaluators(SaysPaid)) as it:
        run = await api(it).start(watched, {"order": "17"}, tenant="t" * 3_000)
        await run.result()
        assert (await scored(it, run.id)).assertions == {"SaysPaid": True}


LET_GO = asyncio.Event()


@dataclass
class Held(Evaluator[Any, Any, Any]):
    """An evaluator that the test holds."""

    async def evaluate(self, ctx: EvaluatorContext[Any, Any, Any]) -> dict[str, Any]:
        await LET_GO.wait()
        return {"says_paid": "paid" in str(ctx.output), "euros": 2}


async def test_r22_4_the_score_is_an_event_behind_the_runs_end(dev_server: WorkflowEnvironment) -> None:
    """Only a reader that names the topic waits for it. It comes once, also for readers that go on from a cursor."""
    watched = Agent("clerk", tools=[look, refund], evaluate={"evaluators": ["Held"]}, approval={"ask": "never"})
    env = {"TEMPORAL_ADDRESS": dev_server.client.service_client.config.target_host}
    async with harness(dev_server.client, [], model, registry=with_evaluators(Held)) as it, asyncio.timeout(HANG):
        run = await api(it).start(watched, {"order": "17"}, tenant=uuid.uuid4().hex)
        unscored = await api(it).start(CLERK, {"order": "17"}, approval={"ask": "never"})
        waiting = asyncio.create_task(collect(run, topics=["score"]))
        before = await collect(run)
        assert (before[-1].topic, before[-1].phase) == ("lifecycle", "end")
        assert not waiting.done()
        LET_GO.set()
        (event,) = await waiting
        again = await collect(run)
        assert without_times(again) == without_times([*before, event])
        assert again[-2:] == [before[-1], event]
        assert await collect(run, before[-1].cursor) == [event]
        assert await collect(run, event.cursor) == []
        assert await collect(unscored, topics=["score"]) == []
        shown = await perdure("show", run.id, env=env)
        listed = await perdure("events", run.id, "--topics", "score", env=env)
    assert event.data == {
        "share": 1.0,
        "passed": True,
        "assertions": {"says_paid": True},
        "scores": {"euros": 2.0},
    }
    assert "score: 1 of 1 conditions hold; euros 2.0" in shown.out
    assert json.loads(listed.out)["data"] == event.data


def without_times(events: list[Any]) -> list[Any]:
    """Return the events without their times, which a replay may shift up to the first task after a local activity.

    The SDK ends a workflow task during a local activity when a query comes. The run goes on by the clock of the next task. A replay takes the two
    tasks as one: it has the time of the second before the local activity, or that of the marker after it. In tasks of events the times are equal.
    """
    return [(each.topic, each.phase, each.cursor, each.data) for each in events]


async def collect(run: Any, from_: str | None = None, topics: list[str] | None = None) -> list[Any]:
    return [event async for event in run.events(from_, topics)]


async def test_r22_4_a_score_that_cannot_be_made_does_not_hold_up_the_run(dev_server: WorkflowEnvironment) -> None:
    watched = Agent("clerk", tools=[look, refund], evaluate={"evaluators": ["Nobody"]}, models={"fast": "lazy"})
    async with harness(dev_server.client, [look, refund], model) as it:
        run = await api(it).start(watched, "x")
        assert await run.result() == "no"
        score = await scored(it, run.id)
        events = await collect(run, topics=["score"])
    assert score.status == "not scored"
    assert "'Nobody'" in score.error
    assert [event.data for event in events] == [{"reason": score.error}]


async def test_an_evaluation_or_a_score_that_is_reset_uses_the_runs_that_are_there(
    dev_server: WorkflowEnvironment,
) -> None:
    """Both failed: `Workflow execution already started`."""
    name = fresh()
    options: dict[str, Any] = {"models": ["good"], "decide": "approve"}
    async with harness(dev_server.client, [], model, registry=with_evaluators(SaysPaid)) as it:
        first = await (await api(it).evaluate(CLERK, dataset(2, SaysPaid()), id=name, **options)).wait()
        begun = len(REFUNDED)
        for each in (scored_id(f"{name}-1"), name):
            await temporal(
                dev_server, "reset", "--workflow-id", each, "--type", "FirstWorkflowTask", "--reason", "again"
            )
            await asyncio.wait_for(it.client.get_workflow_handle(each).result(), HANG)
        again = await (await api(it).evaluate(CLERK, dataset(2, SaysPaid()), id=name, **options)).wait()
        await replays(it, name, scored_id(f"{name}-1"))
    assert (again.totals(), len(REFUNDED)) == (first.totals(), begun)


async def test_the_commands_record_evaluate_and_compare(dev_server: WorkflowEnvironment, tmp_path: Path) -> None:
    address = dev_server.client.service_client.config.target_host
    name, document = fresh(), tmp_path / "clerk.json"
    document.write_text(json.dumps(CLERK.document()))
    async with harness(dev_server.client, [look, refund], model) as it:
        env = {"TEMPORAL_ADDRESS": address, "PERDURE_TASK_QUEUE": it.task_queue}
        secret = {"customer": "C-17", "api_key": "hush-hush"}
        run = await api(it).start(CLERK, "order 17", approval={"ask": "never"}, sender="ann", context=secret)
        await run.result()
        made = await perdure("record", run.id, "--to", str(tmp_path / "cases"), env=env)
        assert (made.code, made.out) == (0, f"1 case in {tmp_path / 'cases'}\n"), made.err
        text = (tmp_path / "cases" / f"{run.id}.json").read_text()
        assert json.loads(text)["sender"] == "ann"
        assert "C-17" in text
        assert "hush-hush" not in text

        how = ("--agent", str(document), "--decide", "approve", "--repeat", "2")
        cases = str(tmp_path / "cases")
        good = await perdure(
            "eval",
            cases,
            *how,
            "--model",
            "good",
            "--id",
            name,
            "--at-least",
            "0.9",
            "--out",
            str(tmp_path / "good"),
            env=env,
        )
        assert good.code == 1, good.err  # nobody was asked about the refund when the case was recorded
        assert f"{run.id}, good: Approvals: a person was asked about refund" in good.out
        (tmp_path / "cases" / f"{run.id}.json").write_text(text.replace('"expected": []', '"expected": ["refund"]'))
        good = await perdure(
            "eval", cases, *how, "--model", "good", "--at-least", "0.9", "--out", str(tmp_path / "a"), env=env
        )
        assert good.code == 0, good.out + good.err
        assert "2/2 100%" in good.out
        assert "34%-100%" in good.out
        assert "2 of 2 runs, 2 passed" in good.err
        lazy = await perdure(
            "eval", cases, *how, "--model", "lazy", "--at-least", "0.9", "--baseline", str(tmp_path / "a"), env=env
        )
        assert lazy.code == 1
        assert f"worse: {run.id}, lazy: 100% (34%-100%) -> 0% (0%-66%), possibly by chance" in lazy.out
        assert "0 better, 1 worse, 0 the same" in lazy.out
        looked = await perdure("eval", "--id", name, "--baseline", str(tmp_path / "a"), "--json", env=env)
        found = json.loads(looked.out)
        assert found["totals"][0]["rate"]["runs"] == 2
        assert [row["case"] for row in found["comparison"]["worse"]] == [run.id]
        for wrong, words in (
            (("eval",), "give CASES and --agent, or the --id of an evaluation"),
            (("eval", cases), "--agent is missing"),
            (("eval", cases, *how, "--decide", "maybe"), "--decide: 'maybe' is not one of reject, approve, wait"),
            (("eval", str(tmp_path / "none"), *how), "the file or folder does not exist"),
            (("eval", cases, *how, "--baseline", str(document)), "is not a result of 'perdure eval --out'"),
            (("eval", "--id", run.id), f"{run.id!r} is not an evaluation, but a workflow of type Agent"),
            (("record",), "give IDs, or select runs by"),
            (("record", "--agent", "clerk"), "--to is missing: give the folder for the cases"),
        ):
            told = await perdure(*wrong, env=env)
            assert told.code != 0
            assert words in told.err
            assert "Traceback" not in told.err


@pytest.mark.parametrize(
    "changed",
    [
        {"parallel": -1},
        {"parallel": 0},
        {"repeat": -1},
        {"timeout": 1e18},
        {"timeout": -1},
        {"agent": {"name": "clerk", "config": "no"}},
        {"cases": []},
        {
            "cases": [{"name": "a", "inputs": 1, "hasInput": True, "metadata": {"sender": 5, "context": []}}],
            "repeat": 0,
        },
        {"id": "x" * 999},
    ],
    ids=lambda each: str(each)[:30],
)
async def test_an_evaluation_that_cannot_run_is_refused(
    dev_server: WorkflowEnvironment, changed: dict[str, Any]
) -> None:
    plan = {"name": "n", "agent": CLERK.document(), "cases": [{"name": "a"}], "id": fresh(), **changed}
    async with harness(dev_server.client, [], model, registry=with_evaluators()) as it:
        wanted = {"plan": plan}
        handle = await it.client.start_workflow(EVALUATION_WORKFLOW, wanted, id=fresh(), task_queue=it.task_queue)
        async with asyncio.timeout(HANG):
            with pytest.raises(WorkflowFailureError):
                await handle.result()
        assert await failed_tasks(handle) == []


async def test_the_client_refuses_an_evaluation_that_cannot_run(dev_server: WorkflowEnvironment) -> None:
    client = Perdure(dev_server.client, task_queue="none")
    for changed, words in (({"parallel": 0}, "parallel"), ({"timeout": 0}, "timeout"), ({"id": "x" * 999}, "too long")):
        with pytest.raises(SettingsError, match=words):
            await client.evaluate(CLERK, dataset(1), **changed)


async def test_runs_of_a_large_agent_do_not_start_in_one_task(dev_server: WorkflowEnvironment) -> None:
    large = Agent("clerk", instructions="You pay refunds. " * 28_000, output=str)
    async with harness(dev_server.client, [], model, registry=with_evaluators()) as it:
        evaluation = await api(it).evaluate(large, dataset(1), models=["lazy"], repeat=10, parallel=10)
        async with asyncio.timeout(HANG):
            (row,) = (await evaluation.wait()).totals()
        assert await failed_tasks(evaluation.handle) == []
    assert (row.rate.runs, row.failed) == (10, {})


async def test_r22_4_a_run_whose_id_leaves_no_room_for_that_of_a_score_ends(dev_server: WorkflowEnvironment) -> None:
    config = {"evaluate": {"evaluators": ["SaysPaid"]}, "models": {"fast": "lazy", "smart": "lazy"}}
    sampled = Agent.of({**CLERK.document(), "config": config})
    async with harness(dev_server.client, [], model, registry=with_evaluators()) as it:
        run = await api(it).start(sampled, "no", id=f"{uuid.uuid4().hex:x<998}")
        async with asyncio.timeout(HANG):
            await run.result()
        assert await failed_tasks(run.handle) == []
