"""The policy of τ²-bench's retail domain as rules: its sentences, its gold plans, and gold plans that were made wrong.

No server and no model: the judge of plans decides. The benchmark is fetched when it is needed, as for `public`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.tau import gold_actions, load_domains
from perdure.plan import Plan
from perdure.rules import Rule, RuleBook, RuleVerdict, count_at_most, judge_plan, never_after, precedes
from perdure.tools.tool import parse_tool
from perdure.values.json import JsonObject
from perdure.values.state import State

FIND: Final = ("find_user_id_by_email", "find_user_id_by_name_zip")
CANCEL: Final = "cancel_pending_order"
ITEMS: Final = "modify_pending_order_items"
EXCHANGE: Final = "exchange_delivered_order_items"
RETURN: Final = "return_delivered_order_items"
PENDING: Final = (CANCEL, "modify_pending_order_address", "modify_pending_order_payment", ITEMS)
ORDERS: Final = (*PENDING, EXCHANGE, RETURN)
"""The tools that change an order."""
PRIVATE: Final = ("get_user_details", "get_order_details", "modify_user_address")
REASONS: Final = ["no longer needed", "ordered by mistake"]
CHECK: Final = "get_order_details"


@dataclass(frozen=True)
class Sentence:
    """A sentence of the policy about what an agent does, with its rules, or why rules cannot hold it."""

    words: str
    rules: tuple[Rule, ...] = ()
    instead: str = ""


def _once(later: str, earlier: str) -> Rule:
    return never_after(later, earlier, event="done", same="order_id")


POLICY: Final = (
    Sentence(
        "Locate the user id via email, or via name and zip code, before anything else",
        tuple(precedes(FIND, tool) for tool in (*PRIVATE, *ORDERS)),
    ),
    Sentence("Help only one user per conversation", instead="which user an order belongs to is in a result"),
    Sentence("List the details and obtain the user's confirmation", instead='a policy: `approval: {"tools": …}`'),
    Sentence("Make one tool call at a time", instead="a property of tools: `_exclusive`"),
    Sentence("Do not make up information", instead="about words"),
    Sentence("Transfer to a human if and only if the request is out of scope", instead="a judgement"),
    Sentence(
        "Check the status of an order before you change it",
        tuple(precedes(CHECK, tool, same="order_id") for tool in ORDERS),
    ),
    Sentence("Change only pending, or only delivered orders", instead="the status is in a result; the tools check it"),
    Sentence("Exchange an order, or modify its items, once", (_once(ITEMS, ITEMS), _once(EXCHANGE, EXCHANGE))),
    Sentence(
        "Cancel for 'no longer needed' or 'ordered by mistake' only",
        (count_at_most(CANCEL, 0, when={"not": {"properties": {"reason": {"enum": REASONS}}, "required": ["reason"]}}),),
    ),
    Sentence("After its items were modified, an order is neither modified nor cancelled", tuple(_once(tool, ITEMS) for tool in PENDING)),
    Sentence(
        "An order that was returned or exchanged is not delivered any more",
        (_once(RETURN, EXCHANGE), _once(EXCHANGE, RETURN), _once(RETURN, RETURN)),
    ),
    Sentence("A new item is of the same product, and available", instead="products are in results; the tools check it"),
    Sentence("A refund goes to the original payment method or a gift card", instead="both are in results; the tools check it"),
    Sentence("A gift card has enough balance", instead="the balance is in a result; the tools check it"),
)  # fmt: skip
RULES: Final = [*{rule.key: rule for sentence in POLICY for rule in sentence.rules}.values()]


def table() -> str:
    """Return the sentences, the gold plans that pass, and the wrong plans that are refused."""
    (domain,) = load_domains("retail")
    golds = {task.id: _calls(task) for task in domain.tasks}
    lines = ["| sentence of the policy | rules | instead |", "|---|--:|---|"]
    lines += [f"| {each.words} | {len(each.rules) or '–'} | {each.instead or '–'} |" for each in POLICY]
    written = sum(bool(each.rules) for each in POLICY)
    lines += ["", f"{written} of {len(POLICY)} sentences are written, as {len(RULES)} rules."]

    lines += ["", "| gold plans | plans | pass | refused |", "|---|--:|--:|---|"]
    whole = {name: completed(calls) for name, calls in golds.items()}
    for words, plans in (("as they are", golds), ("with the reads that the policy asks for", whole)):
        refused = {name: found for name, calls in plans.items() if (found := _broken(calls))}
        why = Counter(name.partition("(")[0] for found in refused.values() for name in found)
        named = f" (tasks {', '.join(refused)})" if len(refused) <= 10 else ""
        shown = ", ".join(f"{rule} {count}" for rule, count in why.most_common()) + named if refused else "–"
        lines.append(f"| {words} | {len(plans)} | {len(plans) - len(refused)} | {shown} |")

    made, refused_of = Counter[str](), Counter[str]()
    for calls in whole.values():
        if not _broken(calls):
            for words, wrong in wrong_plans(calls):
                made[words] += 1
                refused_of[words] += bool(_broken(wrong))
    lines += ["", "| a gold plan that is made wrong | plans | refused |", "|---|--:|--:|"]
    lines += [f"| {words} | {count} | {refused_of[words]} |" for words, count in made.items()]
    return "\n".join(lines)


def _calls(task: Any) -> list[JsonObject]:
    return [{"_tool": each.name, **each.arguments} for each in gold_actions(task)]


def completed(calls: list[JsonObject]) -> list[JsonObject]:
    """Return the calls with the reads that the policy asks for. A gold plan has those only that are scored."""
    found: list[JsonObject] = []
    if calls and not any(call["_tool"] in FIND for call in calls):
        found.append({"_tool": FIND[0], "email": "of the user"})
    checked = set()
    for call in sorted(calls, key=lambda call: call["_tool"] not in FIND):
        order = call.get("order_id")
        if call["_tool"] in ORDERS and order not in checked:
            found.append({"_tool": CHECK, "order_id": order})
        if call["_tool"] in (CHECK, *ORDERS):
            checked.add(order)
        found.append(call)
    return found


def wrong_plans(calls: list[JsonObject]) -> Iterator[tuple[str, list[JsonObject]]]:
    """Yield plans that break the policy in one place, each with what is wrong."""
    changes = [(at, call) for at, call in enumerate(calls) if call["_tool"] in ORDERS]
    finds = [call for call in calls if call["_tool"] in FIND]
    others = [call for call in calls if call["_tool"] not in FIND]
    if finds and others:
        yield "nobody is authenticated", others
        yield "authenticated at the end", [*others, *finds]
    for at, call in changes:
        order, tool = call["order_id"], call["_tool"]
        yield (
            "the status is not checked",
            [each for each in calls if (each["_tool"], each.get("order_id")) != (CHECK, order)],
        )
        yield "another order is changed", [*calls[:at], call | {"order_id": "#W0000000"}, *calls[at + 1 :]]
        if tool == CANCEL:
            yield "cancelled for another reason", [*calls[:at], call | {"reason": "too expensive"}, *calls[at + 1 :]]
        if tool in (ITEMS, EXCHANGE):
            yield "items are modified or exchanged twice", [*calls[: at + 1], call, *calls[at + 1 :]]
        if tool == ITEMS:
            cancel = {"_tool": CANCEL, "order_id": order, "reason": REASONS[0]}
            yield "cancelled after its items were modified", [*calls[: at + 1], cancel, *calls[at + 1 :]]
        if tool == EXCHANGE:
            back = {"_tool": RETURN, "order_id": order, "item_ids": call["item_ids"]}
            yield "returned after an exchange", [*calls[: at + 1], back, *calls[at + 1 :]]
        if "payment_method_id" in call:
            other = call | {"payment_method_id": "gift_card_0000000"}
            yield "paid by a method that nobody has (no rule sees it)", [*calls[:at], other, *calls[at + 1 :]]


def _broken(calls: list[JsonObject]) -> list[str]:
    """Return the rules that a plan breaks whose calls come one after the other."""
    names = dict.fromkeys(str(call["_tool"]) for call in calls)
    tools = {
        name: parse_tool({"name": name, "additionalProperties": True, "_activity": name}, activities=[name])
        for name in names
    }
    plan = Plan(1, tools=tools, state=State())
    for number, call in enumerate(calls):
        after: JsonObject = {"_after": [f"1.{number - 1}"]} if number else {}
        plan.add({**call, "_outputPath": f"†state.r{number}", **after})
    plan.close()
    verdicts: list[RuleVerdict] = judge_plan(plan, RuleBook(RULES))
    assert all(each.status in ("proven", "violated") for each in verdicts), verdicts
    return [each.rule for each in verdicts if each.status == "violated"]
