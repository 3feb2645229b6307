"""The tasks as data: the request, the tools, and the expected result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from perdure.checking.tools import ERROR_LINES
from perdure.values.json import JsonObject

SYSTEM: Final = (
    "You are a careful assistant. Do what the input's request asks, all of it and nothing more, by the tools you have, in as few "
    "answers as you can."
)


@dataclass(frozen=True)
class ExpectedCall:
    """A call that must succeed."""

    tool: str
    params: JsonObject = field(default_factory=dict)
    """Expected parameters, as the tool receives them; others may have any value."""
    wired: bool = False
    """Whether the call must read a reference: the model must not copy the value."""


@dataclass(frozen=True)
class Task:
    """One ability that a model must have."""

    name: str
    shows: str
    """The ability that the task proves."""
    request: str
    tools: tuple[str, ...] = ()
    output: JsonObject = field(default_factory=dict)
    """The expected output; `{}`: any."""
    schema: JsonObject = field(default_factory=dict)
    """The schema of the output; `{}`: made from `output`."""
    done: tuple[ExpectedCall, ...] = ()
    """Calls that must succeed: of each tool exactly as many as are listed."""
    once: tuple[str, ...] = ()
    """Tools whose calls must all be in one answer."""
    failed: tuple[str, ...] = ()
    """Tools with exactly one failed call."""
    never: tuple[str, ...] = ()
    """Tools without a successful call."""
    order: tuple[str, ...] = ()
    """Tools in their order: each must end before the next one starts."""
    approval: JsonObject = field(default_factory=dict)
    """`config.approval`."""

    def document(self, model: str, dialect: str, deadline: float) -> JsonObject:
        """Return the agent file of the task, for one model and dialect."""
        return {
            "name": f"check-{self.name}",
            "description": self.shows,
            "config": {
                "models": {"fast": model, "smart": model, "policy": "fast"},
                "dialect": dialect,
                "max_requests": 6,
                "deadline": deadline,
                **({"approval": self.approval} if self.approval else {}),
            },
            "context": [
                {"type": "system", "text": SYSTEM},
                *({"type": "tool", "tool": tool} for tool in self.tools),
                {"type": "input", "input": {"request": self.request}},
            ],
            "schema": self.schema or _schema(self.output),
        }


def _schema(value: Any) -> JsonObject:
    """Return the schema of such an output."""
    if isinstance(value, dict):
        properties = {key: _schema(each) for key, each in value.items()}
        return {"type": "object", "properties": properties, "required": list(value), "additionalProperties": False}
    if isinstance(value, list):
        return {"type": "array", "items": _schema(value[0])}
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return {"type": kinds[type(value)]}


_ORDER: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "description": "The name alone."},
        "priority": {"enum": ["low", "normal", "high"]},
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"article": {"type": "string"}, "count": {"type": "integer", "minimum": 1}},
                "required": ["article", "count"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["customer", "priority", "items"],
    "additionalProperties": False,
}
NOTE: Final = 'She said: "50 % off — für Müller & Söhne", then {left}.\nSecond line: C:\\temp\\new, 東京, naïve.'

TASKS: Final[tuple[Task, ...]] = (
    Task(
        name="references",
        shows="a plan in one answer, in which a call reads what another one will return",
        request="Send customer C-17 an invoice over their whole balance.",
        tools=("find_customer", "send_invoice", "open_ticket"),
        done=(
            ExpectedCall("find_customer", {"id": "C-17"}),
            ExpectedCall("send_invoice", {"email": "a.weber@example.com", "amount": 412.5}, wired=True),
        ),
        once=("find_customer", "send_invoice"),
        output={"invoice": "INV-2041"},
    ),
    Task(
        name="text",
        shows="values of other calls inside a longer text",
        request="Save a note titled 'call' about customer C-23 whose text is exactly: Dear NAME, write to EMAIL. "
        "NAME and EMAIL stand for the customer's.",
        tools=("find_customer", "save_note"),
        done=(
            ExpectedCall("find_customer", {"id": "C-23"}),
            ExpectedCall("save_note", {"title": "call", "text": "Dear Bruno Costa, write to costa@example.org."}, wired=True),
        ),
        once=("find_customer", "save_note"),
    ),
    Task(
        name="parallel",
        shows="independent calls in one answer, so that they run at once",
        request="How warm is it in Oslo, Rome and Cairo, and which of them is the warmest?",
        tools=("temperature", "save_note"),
        done=(ExpectedCall("temperature"), ExpectedCall("temperature"), ExpectedCall("temperature")),
        once=("temperature",),
        output={"oslo": -3, "rome": 18, "cairo": 31, "warmest": "Cairo"},
    ),
    Task(
        name="branch",
        shows="another way where a call fails, and no second try of what is not to be tried twice",
        request="Charge 40 to the card K-2. If the bank declines, do not try again, but open one ticket titled 'declined'.",
        tools=("charge_card", "open_ticket"),
        failed=("charge_card",),
        never=("charge_card",),
        done=(ExpectedCall("open_ticket", {"title": "declined"}),),
        output={"charged": False, "ticket": "T-88"},
    ),
    Task(
        name="correction",
        shows="a call put right after its error said what is wrong",
        request="How many pages has the document 'report-2026-3'? If that name is not quite right, take the one that is meant.",
        tools=("count_pages",),
        failed=("count_pages",),
        done=(ExpectedCall("count_pages", {"document": "report-2026-03"}),),
        output={"pages": 48},
    ),
    Task(
        name="order",
        shows="order between calls that exchange no data",
        request="Back up the service 'shop': stop it first, start it again afterwards.",
        tools=("start_service", "back_up", "stop_service"),
        done=(
            ExpectedCall("stop_service", {"service": "shop"}),
            ExpectedCall("back_up", {"service": "shop"}),
            ExpectedCall("start_service", {"service": "shop"}),
        ),
        order=("stop_service", "back_up", "start_service"),
    ),
    Task(
        name="choice",
        shows="the right tool among similar ones, with values of the right types",
        request="Book the green meeting room at 3 in the afternoon for Ann and Ben. They will show slides.",
        tools=("book_desk", "cancel_room", "book_room"),
        done=(ExpectedCall("book_room", {"room": "green", "hour": 15, "people": ["Ann", "Ben"], "projector": True}),),
        never=("book_desk", "cancel_room"),
    ),
    Task(
        name="quoting",
        shows="quotes, braces, backslashes, line breaks and letters of all kinds, word for word",
        request=f"Save a note titled 'raw' with exactly the following text, from after the colon to the end:{NOTE}",
        tools=("save_note",),
        done=(ExpectedCall("save_note", {"title": "raw", "text": NOTE}),),
    ),
    Task(
        name="schema",
        shows="an output that fits its schema",
        request="Put this order into the form that is asked for: 'Urgent! Mr Ito wants two lamps and a desk.' "
        "Articles are named in the singular, in lower case. No tool is needed.",
        tools=("save_note",),
        never=("save_note",),
        output={"customer": "Ito", "priority": "high", "items": [{"article": "lamp", "count": 2}, {"article": "desk", "count": 1}]},
        schema=_ORDER,
    ),
    Task(
        name="long",
        shows="a long result handed on by reference, not copied",
        request="How many lines of the log of 2026-03-05 hold the word ERROR?",
        tools=("read_log", "count_lines"),
        done=(ExpectedCall("read_log", {"day": "2026-03-05"}), ExpectedCall("count_lines", {"word": "ERROR"}, wired=True)),
        output={"lines": ERROR_LINES},
    ),
    Task(
        name="rejection",
        shows="what a person does not allow is left alone, and said",
        request="Delete the account of customer C-23, if that is allowed.",
        tools=("delete_account", "save_note"),
        never=("delete_account", "save_note"),
        output={"deleted": False},
        approval={"ask": "dangerous", "timeout": 0.2, "on_timeout": "reject"},
    ),
    Task(
        name="restraint",
        shows="an answer without calls where none is needed",
        request="What is the capital of France? You need no tool for that.",
        tools=("find_customer", "open_ticket", "save_note"),
        never=("find_customer", "open_ticket", "save_note"),
        output={"capital": "Paris"},
    ),
)  # fmt: skip
