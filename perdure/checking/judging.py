"""Whether a task was done, by what happened: the calls, what reached them, when they ran, and the output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise

from perdure.checking.tasks import Done, Task
from perdure.run.wire import CallView, RunView
from perdure.values.jsons import Json, shorten


def judge(task: Task, view: RunView) -> list[str]:
    """What is wrong, each in one line; nothing where the task was done."""
    if view.status != "completed":
        return [view.error or f"the run {view.status}"]
    if view.stop_reason not in ("output", "answer", "task_complete"):
        return [f"it came to no end by itself: {view.stop_reason}"]
    return [*_calls(task, view), *_order(task, view), *_output(task, view)]


def _calls(task: Task, view: RunView) -> Iterator[str]:
    ended_well = [call for call in view.calls if call.status == "done"]
    for tool in dict.fromkeys(wanted.tool for wanted in task.done):
        calls = [call for call in ended_well if call.tool == tool]
        wanted = [each for each in task.done if each.tool == tool]
        if len(calls) != len(wanted):
            yield f"{tool} was done {_times(len(calls))}, not {_times(len(wanted))}"
            continue
        for call, each in zip(calls, wanted, strict=True):
            yield from _params(call, each, view)
    for tool in task.never:
        if any(call.tool == tool for call in ended_well):
            yield f"{tool} was done, which was not wanted"
    for tool in task.failed:
        calls = [call for call in view.calls if call.tool == tool and call.status == "failed"]
        if len(calls) != 1:
            yield f"{tool} failed {_times(len(calls))}, not once"
    answers = {call.id.partition(".")[0] for call in ended_well if call.tool in task.once}
    if len(answers) > 1:
        yield f"{' and '.join(task.once)} took {len(answers)} answers, not one"


def _params(call: CallView, wanted: Done, view: RunView) -> Iterator[str]:
    for name, value in wanted.params.items():
        if not _same(call.params.get(name), value):
            yield f"{call.tool} was given {name}={shorten(call.params.get(name), 60)}, not {shorten(value, 60)}"
    if wanted.wired and not view.reads.get(call.id):
        yield f"{call.tool} was given a copy, not a reference"


def _order(task: Task, view: RunView) -> Iterator[str]:
    calls = [next((c for c in view.calls if c.tool == tool and c.status == "done"), None) for tool in task.order]
    for before, after in pairwise(calls):
        if before is None or after is None or before.ended_at is None or after.started_at is None:
            continue
        if datetime.fromisoformat(after.started_at) < datetime.fromisoformat(before.ended_at):
            yield f"{after.tool} started before {before.tool} had ended"


def _output(task: Task, view: RunView) -> Iterator[str]:
    if task.output and not _same(view.output, task.output):
        yield f"the output was {shorten(view.output, 100)}, not {shorten(task.output, 100)}"


def _same(given: Json, wanted: Json) -> bool:
    """Equal, but for letters' case and the blanks around a text; `2` is `2.0`, `true` is no `1`."""
    if isinstance(wanted, str):
        return isinstance(given, str) and given.strip().casefold() == wanted.strip().casefold()
    if isinstance(wanted, dict):
        return isinstance(given, dict) and all(
            key in given and _same(given[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(given, list) and len(given) == len(wanted) and all(map(_same, given, wanted))
    return isinstance(given, bool) == isinstance(wanted, bool) and given == wanted


def _times(count: int) -> str:
    words: Sequence[str] = ("never", "once", "twice")
    return words[count] if count < len(words) else f"{count} times"
