"""Runs as response objects and chat completions, and ids: a response's id leads to its run, only for its tenant (R10.2).

A response belongs to a session, or, if it is not stored, to its own run. Its id holds the session's random key, and
never the id of the workflow, which is a digest of tenant and key: for another tenant, the same id leads to no run. A
run that waited for its client continues as the next *leg*, which is another response.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Literal, TypeAlias

from perdure.approvals.requests import WaitingView
from perdure.client.run_tree import RunTree, join_ids
from perdure.gateway.answers import failure_of
from perdure.gateway.errors import HttpError
from perdure.gateway.openai._agent_file import Record
from perdure.gateway.openai._requests import APPROVAL_TOOL, NOT_AGAIN, ended_badly
from perdure.models.dialects.output_text import text_of
from perdure.models.usage import Usage
from perdure.plan import Approval
from perdure.runs.events import is_silence
from perdure.runs.wire import CallView, RunView
from perdure.sessions.wire import digest, session_id
from perdure.tools.definitions import plain_definition, with_own_names
from perdure.values.json import Json, JsonObject, dumps

_KEY: Final = r"[A-Za-z0-9-]{1,64}"
_RUN: Final = r"[0-9a-f]{6}-[0-9]{1,9}"
_RESPONSE: Final = re.compile(rf"({_KEY})(?:_({_RUN}))?(?:_([1-9][0-9]{{0,5}}))?")
_DIGEST: Final = "[0-9a-f]{16}"
_CALL: Final = re.compile(rf"call_({_KEY})(?:_({_RUN}))?_([0-9]+(?:--?[0-9]+)*)(?:-{_DIGEST})?")
_ID_WITH_DIGEST: Final = re.compile(rf"(.*)-({_DIGEST})", re.DOTALL)
_CONVERSATION: Final = re.compile(rf"conv_({_KEY})")
RESPONSE: Final = "resp_"
COMPLETION: Final = "chatcmpl-"
RUN_PREFIX: Final = "openai-"
"""The prefix of the id of a run without a session."""


def new_key() -> str:
    """Return a session key that nobody can guess: 96 random bits."""
    return secrets.token_hex(12)


def key_of(*parts: str) -> str:
    """Return a key derived from these words, for requests with an idempotency key."""
    return digest(list(parts), 24)


@dataclass(frozen=True, slots=True)
class ResponseId:
    """The id of a response: the session's `key` and the end of its `run`'s id. Without a `run`, the run has no session."""

    key: str
    run: str = ""
    leg: int = 1
    """1, and one more for each time that the run continued with its client's answers."""

    def __str__(self) -> str:
        return f"{RESPONSE}{self._rest}"

    @property
    def _rest(self) -> str:
        return "_".join(filter(None, (self.key, self.run, str(self.leg) if self.leg > 1 else "")))

    @property
    def completion(self) -> str:
        """Return the id of a chat completion."""
        return f"{COMPLETION}{self._rest}"

    @property
    def number(self) -> int:
        """The run's number in its session."""
        return int(self.run.rpartition("-")[2])

    def run_id(self, tenant: str) -> str:
        """Return the id of the run's workflow, for this tenant."""
        if not self.run:
            return RUN_PREFIX + digest([tenant, self.key], 32)
        return f"{session_id(tenant, self.key)}/{self.run}"

    def next(self) -> ResponseId:
        """Return the leg after this one."""
        return replace(self, leg=self.leg + 1)

    def item(self, kind: str, what: str = "") -> str:
        """Return the id of one of the response's items."""
        return "_".join(filter(None, (kind, self._rest, slug(what))))

    def call(self, call: str) -> str:
        """Return the client's id of a call, the same for all legs of the run."""
        return "_".join(filter(None, ("call", self.key, self.run, slug(call))))


def response_id(text: str, prefix: str = RESPONSE) -> ResponseId | None:
    """Read a response's id; `None` for an invalid id."""
    found = _RESPONSE.fullmatch(text.removeprefix(prefix)) if text.startswith(prefix) else None
    return None if found is None else ResponseId(found[1], found[2] or "", int(found[3] or 1))


def of_call(text: str) -> ResponseId | None:
    """Return the first leg of the run of a call, by the client's id of the call. `None` for an invalid id."""
    found = _CALL.fullmatch(text)
    return None if found is None else ResponseId(found[1], found[2] or "")


def split_digest(id: str) -> tuple[str, str]:
    """Return a client's id of an approval request without the digest of the shown content, and that digest."""
    found = _ID_WITH_DIGEST.fullmatch(id)
    return (id, "") if found is None else (found[1], found[2])


def of_run(key: str, run_id: str) -> ResponseId:
    """Return the first response of a run of the session."""
    return ResponseId(key, run_id.rpartition("/")[2])


def conversation_key(id: str) -> str | None:
    """Return the session's key of a conversation's id."""
    found = _CONVERSATION.fullmatch(id)
    return None if found is None else found[1]


def slug(call: str) -> str:
    """Return a call's id in characters that ids may have: `1.3[0]` is `1-3-0`, and in a delegate's run `1.0/2.0` is `1-0--2-0`."""
    return "--".join(re.sub(r"[^0-9A-Za-z]+", "-", part).strip("-") for part in call.split("/"))


ResponseStatus: TypeAlias = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]

VIA: Final = "openai"
"""The prefix by which a decision names its response: `openai/2/1.0/6f1ed002ab9c0d11` is for the approval request `1.0` with this digest, in the run's second leg."""
LIMITS: Final = {"token_budget": "max_output_tokens", "cost_budget": "max_output_tokens"}
"""OpenAI's reasons for an incomplete answer, by stop reason; `max_messages` for other limits."""
FAILED: Final = "invalid_prompt"
"""The `code` of a failed response: clients do not retry after this one of OpenAI's codes."""
_DONE: Final = (None, "output", "answer", "task_complete")


@dataclass(frozen=True, slots=True)
class RequiredAction:
    """An item at the end of a response that needs its client's action: a call to execute, or one to approve."""

    request_id: str
    """The approval request's id: a call's id, or a Request's number for its plan; in a delegate's run after that run's path, `1.0/2.0`."""
    name: str
    arguments: JsonObject
    approval: bool
    at: str
    """The time at which it began to wait, ISO 8601."""
    digest: str
    """The digest of the shown content: a decision is about this content only (R7.2)."""
    question: bool = False
    """Whether it is a question, which needs an answer."""
    decided: Approval | None = None
    """The decision that came by the next response; `None`: it still waits."""

    @property
    def shown_id(self) -> str:
        """The approval request's id, for an approval with the digest of the shown content."""
        return f"{self.request_id}-{self.digest}" if self.approval and self.digest else self.request_id

    @property
    def run(self) -> str:
        """The path of the delegate's run with the request; empty: the run itself."""
        return self.request_id.rpartition("/")[0]

    @property
    def call(self) -> str:
        """Return the call's id in that run, as in a decision."""
        return self.request_id.rpartition("/")[2]

    @property
    def request(self) -> int:
        """The number of the run's own Request that waits for it."""
        number = self.request_id.partition(".")[0]
        return int(number) if number.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run with its record and its delegates' runs."""

    view: RunView
    record: Record
    output: Json = None
    """The whole output, even if the view has cut it."""
    ended: float | None = None
    """The end time, in seconds since 1970."""
    below: Mapping[str, RunView] = field(default_factory=dict)
    """All runs of delegates by their paths, the rest of their id after the run's own: `1.0`, `1.0/2.1`."""

    @property
    def _tree(self) -> RunTree:
        return RunTree(self.view, self.below)

    @property
    def leg(self) -> int:
        """The number of the run's last leg."""
        return max([1, *(leg for _, view in self._tree.views for call in view.calls for leg, *_ in _decisions(call))])

    @property
    def pauses(self) -> bool:
        """Whether the run waits only for its client."""
        return any(self._shows(request) for _, request in self._tree.waiting) and self._tree.rests

    def status(self, leg: int) -> ResponseStatus:
        """Return the status of a response. A waiting one is `completed`: its last items are the required actions."""
        if leg < self.leg or (self.view.status == "running" and self.pauses):
            return "completed"
        if self.view.status == "running":
            return "in_progress"
        if self.view.status == "refused":  # the model's refusal is the answer
            return "completed"
        if self.view.status == "completed":
            return "completed" if self.view.stop_reason in _DONE else "incomplete"
        return "cancelled" if self.view.status == "cancelled" else "failed"

    def actions(self, leg: int) -> list[RequiredAction]:
        """Return the required actions at the end of the response, in the order of their requests."""
        actions = {
            request_id: ask for each, ask in self._settled() if each == leg + 1 for request_id in [ask.request_id]
        }
        if leg == self.leg and self.view.status == "running":
            actions |= {ask.request_id: ask for ask in self._waiting()}
        return sorted(
            actions.values(), key=lambda ask: (ask.at, [int(n) for n in ask.request_id.split(".") if n.isdecimal()])
        )

    def _waiting(self) -> Iterator[RequiredAction]:
        for path, request in self._tree.waiting:
            if not self._shows(request):
                continue
            arguments = (
                {"calls": request.calls} if request.calls is not None else self._own(request.tool, request.params)
            )
            id, approval = join_ids(path, request.call), not request.client
            yield RequiredAction(
                id, request.tool, arguments, approval, request.requested_at, request.digest, request.question
            )

    def _shows(self, request: WaitingView) -> bool:
        """Whether its client can handle the request: a call that the client carries out, or any request if the client may decide."""
        return request.client or self.record.approves

    def _settled(self) -> Iterator[tuple[int, RequiredAction]]:
        for path, view in self._tree.views:
            yield from self._settled_in(path, view)

    def _settled_in(self, path: str, view: RunView) -> Iterator[tuple[int, RequiredAction]]:
        plans: dict[tuple[int, str], tuple[RequiredAction, list[CallView]]] = {}
        for call in view.calls:
            for leg, request_id, shown, decided in _decisions(call):
                id, at = join_ids(path, request_id), decided.requested_at
                if request_id != call.id and "." not in request_id:
                    plan = RequiredAction(id, "plan", {}, True, at, shown, decided=decided)
                    plans.setdefault((leg, request_id), (plan, []))[1].append(call)
                    continue
                # An answer to `ask_person` names the digest of its question, and a client's result does not.
                approval = decided.decision != "answer" or (bool(shown) and call.tool not in self.record.names)
                arguments = self._own(call.tool, call.params)
                yield leg, RequiredAction(id, call.tool, arguments, approval, at, shown, decided=decided)
        for (leg, _), (plan, calls) in plans.items():
            yield leg, replace(plan, arguments={"calls": [{"_tool": call.tool, **call.params} for call in calls]})

    def _own(self, tool: str, params: JsonObject) -> JsonObject:
        """Return the parameters under the client's names."""
        found = next((each for each in self.record.tools if each["name"] == tool), None)
        return params if found is None else with_own_names(params, plain_definition(found))

    def last_request(self, leg: int) -> int:
        """Return the number of the response's last Request: earlier ones belong to it or to earlier legs."""
        if leg >= self.leg:
            return max((each.number for each in self.view.log), default=0)
        return max((ask.request for each in range(1, leg + 1) for ask in self.actions(each)), default=0)


def _decisions(call: CallView) -> Iterator[tuple[int, str, str, Approval]]:
    """Yield the call's decisions that arrived by a response: its leg, the request's id, the digest, and the decision."""
    for decided in [] if call.approval is None else call.approval.channel_decisions:
        parts = decided.via.split("/")
        if len(parts) in (3, 4) and parts[0] == VIA and parts[1].isdecimal():  # those of 0.2.0 have no digest
            yield int(parts[1]), parts[2], "".join(parts[3:]), decided


def decision_via(id: ResponseId, request_id: str, digest: str) -> str:
    """Return the `via` of a decision that arrives by this response."""
    return f"{VIA}/{id.leg}/{request_id}/{digest}".rstrip("/")


def answer_of(found: FoundRun) -> str:
    """Return the text of a run's answer: as in a reply (R10.16), or JSON if the request has its own format."""
    if found.output is None or is_silence(text := text_of(found.output)):
        return ""
    return dumps(found.output) if found.record.formatted else text


def refusal_of(found: FoundRun) -> str | None:
    """Return the text of a model's refusal (R20.2)."""
    return failure_of(found.view) if found.view.status == "refused" else None


def output_items(id: ResponseId, found: FoundRun) -> list[JsonObject]:
    """Return the present items of a response."""
    items: list[JsonObject] = []
    if id.leg == found.leg and found.view.status == "completed" and (text := answer_of(found)):
        items.append(message_item(id, text))
    if id.leg == found.leg and (refusal := refusal_of(found)) is not None:
        part: JsonObject = {"type": "refusal", "refusal": refusal}
        items.append(message_item(id, "") | {"content": [part]})
    for ask in found.actions(id.leg):
        by_item = ask.approval and not found.record.approval_tool
        items.append(approval_item(id, ask, found.record.agent) if by_item else function_item(id, ask))
    return items


def message_item(id: ResponseId, text: str, status: str = "completed") -> JsonObject:
    """Return the item of an answer, of a beginning of one, or of a superseded text."""
    part: JsonObject = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item: JsonObject = {"id": id.item("msg"), "type": "message", "role": "assistant", "status": status}
    if status == "in_progress":
        return item | {"content": []}
    return item | {"content": [part], "phase": "final_answer" if status == "completed" else "commentary"}


def function_item(id: ResponseId, ask: RequiredAction) -> JsonObject:
    """Return the item of a call of the client's tool, or of a call that requests an approval."""
    name, arguments = function_of(ask)
    about = {"id": id.item("fc", ask.request_id), "call_id": id.call(ask.shown_id), "name": name}
    return about | {"type": "function_call", "status": "completed", "arguments": arguments}


def function_of(ask: RequiredAction) -> tuple[str, str]:
    """Return the name and the arguments of the call."""
    if ask.approval:
        return APPROVAL_TOOL, dumps({"tool": ask.name, "arguments": ask.arguments})
    return ask.name, dumps(ask.arguments)


def approval_item(id: ResponseId, ask: RequiredAction, agent: str) -> JsonObject:
    """Return the item of an approval. Its type is that of MCP tools' approvals, OpenAI's only one; its label is the agent's name."""
    about = {"id": id.item("mcpr", ask.shown_id), "name": ask.name, "server_label": agent}
    return about | {"type": "mcp_approval_request", "arguments": dumps(ask.arguments)}


def usage_of(found: FoundRun, leg: int) -> JsonObject:
    """Return the tokens of a response's Requests. The run's last response has all others too, including delegates'."""
    first = found.last_request(leg - 1) if leg > 1 else 0
    whole: Usage = found.view.usage
    if leg < found.leg:
        last = found.last_request(leg)
        counted = [each.usage for each in found.view.log if first < each.number <= last]
        whole = _sum(counted)
    elif first:
        whole = _less(whole, _sum([each.usage for each in found.view.log if each.number <= first]))
    return {
        "input_tokens": whole.prompt_tokens,
        "input_tokens_details": {"cached_tokens": whole.cached_tokens, "cache_write_tokens": whole.cache_write_tokens},
        "output_tokens": whole.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": whole.reasoning_tokens},
        "total_tokens": whole.tokens,
    }


def _sum(counted: list[Usage]) -> Usage:
    total = Usage()
    for each in counted:
        total = total.plus(each)
    return total


def _less(whole: Usage, part: Usage) -> Usage:
    left = {name: max(0, getattr(whole, name) - getattr(part, name)) for name in Usage.model_fields}
    return Usage(**left)


def response_object(id: ResponseId, found: FoundRun) -> JsonObject:
    """Return the response in its present state."""
    status = found.status(id.leg)
    settled = status not in ("queued", "in_progress")
    reason = None
    if status == "incomplete":
        reason = {"reason": LIMITS.get(str(found.view.stop_reason), "max_messages")}
    last = settled and id.leg == found.leg and found.view.stop_reason is not None
    more: JsonObject = {"stop_reason": found.view.stop_reason} if last else {}
    begun = empty_response(id, found.record, found.view.run_id, status)
    return begun | {
        "completed_at": _completed(id, found) if status == "completed" else None,
        "error": _error(found) if status == "failed" else None,
        "incomplete_details": reason,
        "output": output_items(id, found),
        "usage": usage_of(found, id.leg) if settled else None,
        "perdure": begun["perdure"] | more,
    }


def empty_response(id: ResponseId, record: Record, run_id: str, status: ResponseStatus) -> JsonObject:
    """Return the response before its run begins. The additional key `perdure` names the run."""
    return {
        "id": str(id),
        "object": "response",
        "created_at": record.created,
        "completed_at": None,
        "status": status,
        "error": None,
        "incomplete_details": None,
        **record.echo,
        "output": [],
        "usage": None,
        "perdure": {"run_id": run_id},
    }


def _completed(id: ResponseId, found: FoundRun) -> int | None:
    if id.leg == found.leg and found.ended is not None:
        return int(found.ended)
    times = [ask.at for ask in found.actions(id.leg)]
    return int(datetime.fromisoformat(max(times)).timestamp()) if times else None


def _error(found: FoundRun) -> JsonObject:
    return {"code": FAILED, "message": failure_of(found.view), "type": NOT_AGAIN, "param": None}


def completion_object(id: ResponseId, found: FoundRun) -> JsonObject:
    """Return the completion of a run that has ended, or waits for its client. Raises `HttpError` (422) for one without an answer."""
    status = found.status(id.leg)
    if status in ("failed", "cancelled"):
        raise no_answer(found)
    actions = found.actions(id.leg)
    text = answer_of(found) if id.leg == found.leg and found.view.status == "completed" else None
    message: JsonObject = {"role": "assistant", "content": text, "refusal": refusal_of(found)}
    if actions:
        message["tool_calls"] = [_call(id, ask) for ask in actions]
    reason = "tool_calls" if actions else "length" if status == "incomplete" else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    about = about_completion(id, found.record.created, found.record.agent, "chat.completion")
    more: JsonObject = {"run_id": found.view.run_id, "stop_reason": found.view.stop_reason}
    metadata_field = {"metadata": metadata} if (metadata := found.record.echo.get("metadata")) else {}
    return about | {"choices": [choice], "usage": chat_usage(found, id.leg), "perdure": more} | metadata_field


def no_answer(found: FoundRun) -> HttpError:
    """Return the error for a run without an answer."""
    return ended_badly(failure_of(found.view), f"run_{found.view.status}")


def chat_usage(found: FoundRun, leg: int) -> JsonObject:
    """Return the tokens under this API's names."""
    usage = usage_of(found, leg)
    return {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": {"cached_tokens": usage["input_tokens_details"]["cached_tokens"]},
        "completion_tokens_details": usage["output_tokens_details"],
    }


def _call(id: ResponseId, ask: RequiredAction) -> JsonObject:
    name, arguments = function_of(ask)
    return {"id": id.call(ask.shown_id), "type": "function", "function": {"name": name, "arguments": arguments}}


def about_completion(id: ResponseId, created: int, model: str, kind: str) -> JsonObject:
    about = {"id": id.completion, "object": kind, "created": created, "model": model}
    return about | {"service_tier": "default", "system_fingerprint": None}
