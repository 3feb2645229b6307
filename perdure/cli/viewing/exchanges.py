"""What was sent to the model and what it answered, printed word for word (`show --verbose`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from perdure.model.strictness import make_strict
from perdure.model.wire import RequestContext, RequestResult
from perdure.values.jsons import dumps

if TYPE_CHECKING:
    from perdure.client.audit import Exchange


def print_exchanges(console: Console, found: list[Exchange]) -> None:
    """Full prompts and answers, as `show --verbose` prints them."""
    for exchange in found:
        request, context = exchange.request, exchange.context
        title = f"[iter={request.number} model={request.model} reason={request.reason} msgs={len(context.messages)}]"
        console.print(Text(title, style="bold"), soft_wrap=True)
        for message in context.messages:
            console.print(Text(f"--- {message['role']}", style="dim"))
            console.print(Text(_content(message)), soft_wrap=True)  # word for word, so no line is broken
        if context.parameters:
            console.print(Text("--- sent beside the messages", style="dim"))
            console.print(Text(dumps(context.parameters)), soft_wrap=True)
        for problem in _not_strict(context):
            console.print(Text(f"not in strict mode: {problem}", style="dim"))
        if exchange.answer is not None and (thought := exchange.answer.thought):
            cut = exchange.answer.reasoned - len(thought)
            console.print(Text("--- reasoning", style="dim"))
            console.print(Text(thought + (f"… ({cut:,} more characters)" if cut > 0 else "")), soft_wrap=True)
        console.print(Text("--- answer", style="dim"))
        answer = "(none)" if exchange.answer is None else _answer(exchange.answer)
        console.print(Text(answer), soft_wrap=True)
        console.print()


def _content(message: dict[str, Any]) -> str:
    calls = [
        f"{call['id']} {call['function']['name']}({call['function']['arguments']})"
        for call in message.get("tool_calls", ())
    ]
    about = [f"({message['tool_call_id']})"] if "tool_call_id" in message else []
    return "\n".join([*about, *([message["content"]] if message.get("content") else []), *calls])


def _answer(answer: RequestResult) -> str:
    """The text as it was written; native calls as they were read."""
    calls = [] if answer.text.strip() else answer.calls
    return "\n".join([*([answer.text] if answer.text.strip() else []), *map(dumps, calls)]) or "(empty)"


def _not_strict(context: RequestContext) -> list[str]:
    """What keeps the composed schema from OpenAI's strict mode (R9.3)."""
    schema = context.parameters.get("response_format", {}).get("json_schema", {})
    return [] if not schema or schema.get("strict") else make_strict(schema["schema"])[1]
