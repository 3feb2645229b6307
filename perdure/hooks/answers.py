"""Answers of hooks: which hooks match an event, and how their answers change it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from perdure.errors import JsonError, TooLargeError, clip
from perdure.hooks.events import HOOKS, HookAnswer, HookEvent, HookProblem, HookRef
from perdure.values.json import JsonObject, check, dumps
from perdure.values.limits import MAX_REASON


def withheld_words(tool: str, why: str) -> str:
    """Return the message of a call that ran, and whose result a hook withholds."""
    return f"{tool} was carried out, and its result is withheld: {why}"


@dataclass(frozen=True, slots=True)
class Refused:
    """A hook's refusal of an event: see `refuse`."""

    reason: str


def refuse(reason: str) -> Refused:
    """Return a refusal: a hook or reply route that returns it stops the event or the delivery. The reason goes to the
    sender, the caller or the model.

    ```python
    @hook("message_received")
    def office_hours(event: MessageReceived) -> Any:
        return refuse("We are closed on Sundays.") if "sunday" in event.text.lower() else None
    ```
    """
    words = str(reason).encode(errors="replace").decode()
    return Refused(clip(words, MAX_REASON) or "no reason was given")


class HookAnswerError(Exception):
    """A value that a hook may not return; `str()` has the reason, and quotes no value."""


class HookedEvent:
    """One event and the answers of its hooks so far. `most` is the limit in bytes for a changed event."""

    def __init__(self, event: HookEvent, most: int) -> None:
        self.event = event
        self._most = most
        self.answer = HookAnswer()

    @property
    def over(self) -> bool:
        """Whether a hook has refused it."""
        return self.answer.refused is not None

    def hear(self, hook: HookRef, returned: object) -> None:
        """Apply the value that a hook returned. Raises `HookAnswerError`, without a change, for an invalid value."""
        if returned is None:
            return
        rule = HOOKS[hook.event]
        if isinstance(returned, Refused):
            if not rule.refused:
                raise HookAnswerError(f"it returned refuse(…), but {rule.name} cannot be refused")
            self.answer.refused, self.answer.by = refuse(returned.reason).reason, [hook.name]
            return
        if not rule.changes or not isinstance(returned, rule.event):
            may = f"the changed event, refuse(…) or nothing ({rule.event.__name__})" if rule.answers else "nothing"
            raise HookAnswerError(f"it returned {type(returned).__name__}, but must return {may}")
        fields = {name: getattr(returned, name) for name in rule.changes}
        try:
            check(fields, source="the hook's answer", most=self._most)  # each value has at least one byte
        except (JsonError, TooLargeError) as error:
            raise HookAnswerError(clip(str(error), 300)) from None
        if (size := len(dumps(fields).encode(errors="surrogatepass"))) > self._most:
            raise HookAnswerError(f"its answer has {size:,} bytes; the limit is {self._most:,}")
        if dumps(fields) != dumps({name: getattr(self.event, name) for name in rule.changes}):
            try:
                self.event = self.event.changed(**fields)
            except ValueError:  # made without `changed`, which would have raised the error in the hook
                names = ", ".join(rule.changes)
                raise HookAnswerError(f"{names}: not valid for {rule.event.__name__}") from None
            self.answer.changed = fields
            self.answer.by.append(hook.name)

    def fail(self, hook: HookRef, problem: str) -> None:
        """Record that the hook failed: it counts as a refusal, or as absent."""
        if hook.closed:
            self.answer.refused, self.answer.by = f"the hook {hook.name} {problem}", [hook.name]
        else:
            self.answer.failed.append(HookProblem(hook=hook.name, problem=problem))


def answer_for_run(before: HookEvent, hearing: HookedEvent) -> HookAnswer:
    """Return the answer for the run. It has only the changed parameters, because the run knows the others (R18.1)."""
    answer = hearing.answer
    if answer.changed is None or "params" not in answer.changed:
        return answer
    was: JsonObject = getattr(before, "params", {})
    now: JsonObject = answer.changed["params"]
    changed = {name: value for name, value in now.items() if name not in was or dumps(was[name]) != dumps(value)}
    gone = [name for name in was if name not in now]
    other: HookAnswer = answer.model_copy(update={"changed": {**answer.changed, "params": changed}, "gone": gone})
    return other


def answer_without_hook(hooks: list[HookRef], problem: str) -> HookAnswer:
    """Return the answer if no hook could be called."""
    hearing = HookedEvent(HookEvent(), 0)
    for hook in hooks:
        if not hearing.over:
            hearing.fail(hook, problem)
    return hearing.answer


BEFORE: Final = "before_tool_call"
AFTER: Final = "after_tool_call"
PERSIST: Final = "tool_result_persist"
OF_CALLS: Final = (BEFORE, AFTER, PERSIST)
"""The events of a call."""


class Hooks:
    """The hooks that a run, or an execution of a session, has recorded."""

    def __init__(self, recorded: Iterable[HookRef] = ()) -> None:
        self._by_event: dict[str, list[HookRef]] = {}
        for hook in recorded:
            self._by_event.setdefault(hook.event, []).append(hook)

    def __bool__(self) -> bool:
        return bool(self._by_event)

    def of(self, event: str, tools: Collection[str] = ()) -> list[HookRef]:
        """Return the hooks of an event; for a call's event, those for one of the names of its tool."""
        found = self._by_event.get(event)
        return [] if found is None else [hook for hook in found if matches_tool(hook, tools)]


def matches_tool(hook: HookRef, tools: Collection[str]) -> bool:
    """Whether the hook is for a tool with one of these names: an agent file cannot evade it by another name for the
    code.
    """
    return hook.tools is None or any(name in hook.tools for name in tools)
