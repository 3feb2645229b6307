"""The score of a finished run: the evaluators of `pydantic-evals`, given the run as their task."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError
from pydantic_evals import Case, CaseLifecycle, Dataset
from pydantic_evals.evaluators import Evaluator, EvaluatorContext
from pydantic_evals.otel import SpanTree
from pydantic_evals.otel.span_tree import SpanNode

from perdure.errors import SettingsError, clip
from perdure.evals.evaluators import OURS, RUN
from perdure.plan import INVALID_WRITE
from perdure.runs.evaluation import LONGEST_OUTPUT, LONGEST_REASON, EvaluationCase, RunScore
from perdure.runs.wire import RunView
from perdure.values.json import Json, JsonObject, dumps, shorten
from perdure.values.problems import first_problem

_NOT_BEGUN: Final = ("rejected", "skipped", "invalid", "deferred")
_LABELS: Final = 20
"""Results of one run that are kept."""


def load_evaluators(
    specs: Sequence[Json], types: Iterable[type[Evaluator[Any, Any, Any]]] = ()
) -> list[Evaluator[Any, Any, Any]]:
    """Return the evaluators that a dataset file names, as `"MaxCost"` or `{"MaxCost": 0.05}`.

    `types`: classes of the application beside those of `pydantic-evals` and of this package. Raises `SettingsError` for
    an unknown name, or invalid arguments.

    ```python
    evaluators = load_evaluators([{"MaxCost": 0.05}, "IsPolite"], [IsPolite])
    ```
    """
    own = {each.get_serialization_name(): each for each in types}
    known = [*own.values(), *(each for each in OURS if each.get_serialization_name() not in own)]
    document: JsonObject = {"name": "evaluators", "cases": [], "evaluators": [*specs]}
    try:
        return [*Dataset[Any, Any, Any].from_dict(document, custom_evaluator_types=known).evaluators]
    except ValidationError as error:
        raise SettingsError(f"evaluators: {first_problem(error, document)}") from None
    except ExceptionGroup as error:
        words = " ".join(str(error.exceptions[0]).split()).partition(". If you are trying")[0]
        words = words.replace("not in the provided `custom_evaluator_types`", "not known")
        raise SettingsError(f"evaluators: {clip(words, 800)}") from None
    except ValueError as error:
        raise SettingsError(f"evaluators: {clip(' '.join(str(error).split()), 500)}") from None


@dataclasses.dataclass(repr=False)
class _ThreadedEvaluator(Evaluator[Any, Any, Any]):
    """An evaluator that runs the code of another one in a thread, so that it does not block the worker."""

    inner: Evaluator[Any, Any, Any]

    def evaluate(self, ctx: EvaluatorContext[Any, Any, Any]) -> Any:
        return self.inner.evaluate(ctx)

    async def evaluate_async(self, ctx: EvaluatorContext[Any, Any, Any]) -> Any:
        if type(self.inner).evaluate_async is not Evaluator.evaluate_async:
            return await self.inner.evaluate_async(ctx)
        output = await asyncio.to_thread(self.inner.evaluate, ctx)
        return await output if inspect.isawaitable(output) else output

    def get_default_evaluation_name(self) -> str:
        return self.inner.get_default_evaluation_name()

    def get_evaluator_version(self) -> str | None:
        return self.inner.get_evaluator_version()

    def as_spec(self) -> Any:
        return self.inner.as_spec()

    def __repr__(self) -> str:
        return repr(self.inner)


def span_tree(view: RunView) -> SpanTree:
    """Return the run as a tree of spans, with the names of OpenTelemetry's conventions for agents.

    The evaluators of `pydantic-evals` for tools, their order and model requests read these.
    """
    tree = SpanTree()
    asked = [each for each in view.log if each.number]  # number 0 is a plan that the input gave
    nodes = [
        _node(number, "chat", {"gen_ai.operation.name": "chat", "gen_ai.request.model": each.model}, None, None)
        for number, each in enumerate(asked, 1)
    ]
    for number, call in enumerate(view.calls, len(nodes) + 1):
        unwritten = call.error is not None and call.error.get("code") == INVALID_WRITE
        if call.started_at is None or (call.status in _NOT_BEGUN and not unwritten):
            continue
        about = {"gen_ai.tool.name": call.tool, "gen_ai.tool.call.arguments": dumps(call.params)}
        node = _node(number, f"execute_tool {call.tool}", about, call.started_at, call.ended_at)
        nodes.append(dataclasses.replace(node, status="error" if unwritten or call.status == "failed" else "ok"))
    tree.add_spans(nodes)
    return tree


def _node(number: int, name: str, attributes: Mapping[str, str], started: str | None, ended: str | None) -> SpanNode:
    start = datetime.fromisoformat(started) if started else datetime.fromisoformat("1970-01-01T00:00:00+00:00")
    return SpanNode(
        name=name,
        trace_id=1,
        span_id=number,
        parent_span_id=None,
        start_timestamp=start,
        end_timestamp=datetime.fromisoformat(ended) if ended else start,
        attributes={**attributes},
    )


async def score_run(
    view: RunView, case: EvaluationCase | None, evaluators: Sequence[Evaluator[Any, Any, Any]], *, seconds: float = 0.0
) -> RunScore:
    """Return the score of a run. `case`: the case that it belongs to. `seconds`: the time that it took.

    An evaluator that raises is a problem of the score, never an error of this function. `evaluate` without `async` runs in a thread.

    ```python
    score = await score_run(await run.view(), None, [MaxCost(0.05)])
    ```
    """
    whole = Case[Any, Any, Any](
        name="run" if case is None else case.name,
        inputs=None if case is None else case.inputs,
        expected_output=None if case is None else case.expected_output,
        metadata=None if case is None else case.metadata,
        evaluators=[_ThreadedEvaluator(each) for each in evaluators],
    )
    usage = view.usage
    metrics = {"requests": view.requests, "tokens": usage.tokens} | ({} if usage.cost is None else {"cost": usage.cost})

    class OfRun(CaseLifecycle[Any, Any, Any]):
        """A case lifecycle with the run's own data, in place of the data that the task recorded."""

        async def prepare_context(self, ctx: EvaluatorContext[Any, Any, Any]) -> EvaluatorContext[Any, Any, Any]:
            own: dict[str, Any] = {
                "duration": seconds,
                "metrics": metrics,
                "attributes": {RUN: view},
                "_span_tree": span_tree(view),
            }
            return dataclasses.replace(ctx, **own)

    dataset = Dataset[Any, Any, Any](name="run", cases=[whole])
    report = await dataset.evaluate(lambda _: view.output, progress=False, lifecycle=OfRun)
    score = RunScore(
        run_id=view.run_id,
        status=view.status,
        error=clip(view.error or "", LONGEST_REASON),
        output=_shown(view.output),
        requests=view.requests,
        tokens=usage.tokens,
        cost=usage.cost,
        seconds=seconds,
    )
    for found in report.cases:
        results = {**found.assertions, **found.scores, **found.labels}
        # Conditions that do not hold come first: the others may be left out, or have the same shortened name.
        failed_first = sorted(results.items(), key=lambda item: item[1].value is not False)
        for name, result in failed_first[:_LABELS]:
            name = clip(name, 80)
            if isinstance(result.value, bool):
                score.assertions.setdefault(name, result.value)
            elif isinstance(result.value, int | float):
                score.scores[name] = result.value
            else:
                score.labels[name] = clip(result.value, LONGEST_REASON)
            if result.reason:
                score.reasons[name] = clip(" ".join(result.reason.split()), LONGEST_REASON)
        score.problems = [
            clip(f"{each.name}: {each.error_message}", LONGEST_REASON) for each in found.evaluator_failures[:_LABELS]
        ]
        if (more := len(results) - _LABELS) > 0:
            score.problems.append(f"{more:,} more results: at most {_LABELS} of one run are kept")
    score.problems += [clip(each.error_message, LONGEST_REASON) for each in report.failures]
    return score


def _shown(output: Json) -> str:
    return clip(output, LONGEST_OUTPUT) if isinstance(output, str) else shorten(output, LONGEST_OUTPUT)
