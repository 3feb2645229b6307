"""The agent: what comes from a mail reaches no account number."""

from __future__ import annotations

from pydantic import BaseModel

from examples.mailbox.tools import read_mail, send_money
from perdure import Agent


class Wish(BaseModel):
    landlord: str
    rent: float
    """Euros."""


class Report(BaseModel):
    paid: str
    mail: str


AGENT = Agent(
    "mailbox",
    description="Pays the rent, and tells what the newest mail is about",
    instructions="Pay the rent to the landlord, read the newest mail and tell what it is about.",
    tools=[read_mail, send_money],
    input=Wish,
    output=Report,
    approval={
        "ask": "untrusted",
        "flows": [{"from": "untrusted", "to": "send_money.iban", "do": "refuse"}],
    },
)
INPUT = Wish(landlord="DE01 1111", rent=900)
