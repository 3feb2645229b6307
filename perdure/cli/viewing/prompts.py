"""What a run's prompts are made of, and what each part costs (`show --prompt`, R10.19)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from rich.text import Text

from perdure.cli.viewing.console import screen
from perdure.cli.viewing.tables import table
from perdure.run.parts.costs import TOKEN, alike, characters, costs
from perdure.values.jsons import JsonObject, dumps

if TYPE_CHECKING:
    from perdure.client.audit import Exchange


def print_parts(run_id: str, found: list[Exchange], *, as_json: bool) -> None:
    """The parts of the last Request, and of each Request what it had, what was cached of it and what began like the one before."""
    told = _told(found)
    if as_json:
        print(dumps({"runId": run_id, "requests": told}))
        return
    out = screen()
    if not told:
        out.print(Text(f"{run_id} has not asked a model yet"))
        return
    last = told[-1]
    how = (
        "counted by its server, shared out by characters" if last["counted"] else f"estimated: {TOKEN} characters each"
    )
    out.print(
        Text(f"Request {last['number']} to {last['model']}: {last['tokens']:,} tokens, {how}", style="bold"),
        soft_wrap=True,
    )
    rows = [(each["part"], f"{each['characters']:,}", f"{each['tokens']:,}") for each in last["parts"]]
    out.print(table(("part", "characters", "tokens"), rows, out.width, gives=("part",)))
    for line in last.get("leftOut", ()):
        out.print(Text(f"left out: {line}", style="yellow"))
    for each in told:
        out.print(Text(_line(each), style="dim"), soft_wrap=True)


def _told(found: list[Exchange]) -> list[JsonObject]:
    begins = [0, *(alike(one.context.messages, other.context.messages) for one, other in pairwise(found))]
    told = []
    for exchange, begun in zip(found, begins, strict=True):
        context, usage = exchange.context, None if exchange.answer is None else exchange.answer.usage
        cost = costs(context.parts, 0 if usage is None else usage.prompt_tokens)
        parts = [{**each.as_json(), "tokens": tokens} for each, tokens in zip(context.parts, cost.tokens, strict=True)]
        told.append(
            {
                "number": exchange.request.number,
                "model": exchange.request.model,
                "tokens": cost.total,
                "counted": cost.counted,
                "cachedTokens": 0 if usage is None else usage.cached_tokens,
                "characters": sum(map(characters, context.messages)),
                "likeTheOneBefore": begun,
                "parts": parts,
                **({"leftOut": context.left_out} if context.left_out else {}),
            }
        )
    return told


def _line(request: JsonObject) -> str:
    """`Request 2 gpt-4o: 1,204 tokens, 1,024 of them cached; the first 4,100 of 4,816 characters as in the one before`."""
    about = "" if request["counted"] else " (estimated)"
    cached = f", {request['cachedTokens']:,} of them cached" if request["cachedTokens"] else ""
    same = request["likeTheOneBefore"]
    like = f"; the first {same:,} of {request['characters']:,} characters as in the one before" if same else ""
    return f"Request {request['number']} {request['model']}: {request['tokens']:,} tokens{about}{cached}{like}"
