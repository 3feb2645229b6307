"""The made-up tools of the tasks: quick, without effect, and the same each time, so that only the model makes a difference."""

from __future__ import annotations

from typing import Any, Final, Literal

from typing_extensions import TypedDict

from perdure import ToolError, tool

LOG_LINES: Final = 400
ERROR_LINES: Final = 57


class Customer(TypedDict):
    id: str
    name: str
    email: str
    balance: float


CUSTOMERS: Final[dict[str, Customer]] = {
    "C-17": {"id": "C-17", "name": "Alice Weber", "email": "a.weber@example.com", "balance": 412.5},
    "C-23": {"id": "C-23", "name": "Bruno Costa", "email": "costa@example.org", "balance": 99.0},
}
TEMPERATURES: Final = {"oslo": -3, "rome": 18, "cairo": 31, "lima": 22}
DOCUMENTS: Final = {"report-2026-03": 48, "report-2026-04": 52}


@tool(safe=True, retries=0)
def find_customer(id: str) -> Customer:
    """A customer's name, email address and balance."""
    if id not in CUSTOMERS:
        raise ToolError("no_such_customer", f"there is no customer {id!r}")
    return CUSTOMERS[id]


@tool(retries=0)
def send_invoice(email: str, amount: float) -> dict[str, str]:
    """Send an invoice over an amount to an email address."""
    return {"number": "INV-2041", "email": email}


@tool(safe=True, retries=0)
def temperature(city: str) -> dict[str, int]:
    """The temperature of one city, in degrees Celsius."""
    if city.strip().lower() not in TEMPERATURES:
        raise ToolError("unknown_city", f"there is no station in {city!r}")
    return {"celsius": TEMPERATURES[city.strip().lower()]}


@tool(retries=0)
def charge_card(card: str, amount: float) -> dict[str, str]:
    """Charge a credit card. Fails with the code 'declined' where the bank declines."""
    if card == "K-2":
        raise ToolError("declined", "the bank has declined the card K-2")
    return {"receipt": f"R-{card}"}


@tool(retries=0)
def open_ticket(title: str) -> dict[str, str]:
    """Open a ticket for a person to look at."""
    return {"ticket": "T-88"}


@tool(safe=True, retries=0)
def count_pages(document: str) -> dict[str, int]:
    """Count the pages of a document, by its exact name."""
    if document not in DOCUMENTS:
        raise ToolError("no_such_document", f"there is no {document!r}; there are: {', '.join(DOCUMENTS)}")
    return {"pages": DOCUMENTS[document]}


@tool(retries=0)
def stop_service(service: str) -> str:
    """Stop a service."""
    return "ok"


@tool(retries=0)
def back_up(service: str) -> str:
    """Back up a service's data. The service must be stopped meanwhile."""
    return "ok"


@tool(retries=0)
def start_service(service: str) -> str:
    """Start a service."""
    return "ok"


@tool(retries=0)
def book_room(room: Literal["red", "green", "blue"], hour: int, people: list[str], projector: bool = False) -> str:
    """Book a meeting room for an hour of today, 0 to 23."""
    return "booked"


@tool(retries=0)
def book_desk(desk: int, person: str) -> str:
    """Book a desk for one person for today."""
    return "booked"


@tool(retries=0)
def cancel_room(room: Literal["red", "green", "blue"], hour: int) -> str:
    """Cancel the booking of a meeting room."""
    return "cancelled"


@tool(retries=0)
def save_note(title: str, text: str) -> dict[str, int]:
    """Save a note, word for word."""
    return {"characters": len(text)}


@tool(safe=True, retries=0)
def read_log(day: str) -> list[str]:
    """Read all lines of a day's log."""
    return [
        f"{day} {n // 60:02}:{n % 60:02} {'ERROR' if n % 7 == 3 else 'INFO'} request {n} to /orders/{n * 37 % 1000} took {n % 90} ms"
        for n in range(LOG_LINES)
    ]


@tool(safe=True, retries=0)
def count_lines(lines: list[str], word: str) -> int:
    """Count the lines that hold a word."""
    return sum(word in line for line in lines)


@tool(dangerous=True, retries=0)
def delete_account(id: str) -> dict[str, Any]:
    """Delete a customer's account for good."""
    return {"deleted": id}
