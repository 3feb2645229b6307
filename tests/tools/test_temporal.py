"""What a user has in Temporal as tools: signatures give schemas, and a call's parameters the arguments (R13.6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nexusrpc
import pytest
from pydantic import BaseModel
from temporalio import activity, workflow

from perdure import ToolContext, activity_tool, nexus_tool, tool, workflow_tool
from perdure.errors import ToolDefinitionError
from perdure.tools.decorator import ToolFunction, tool_function
from perdure.tools.tool import Existing, resolve_tools


@dataclass
class Address:
    """Somewhere."""

    street: str
    town: str = "Bern"


class Parcel(BaseModel):
    number: int


@activity.defn
async def ship(address: Address) -> str:
    """Send it."""
    return address.town


class Bank:
    @activity.defn(name="charge-card")
    async def charge(self, euros: float, account: str = "main", note: str | None = None) -> float:
        """Take money.

        Args:
            euros: How much.
        """
        return euros if account and note else 0.0


@activity.defn
async def wants_context(context: ToolContext) -> None:
    """Cannot have it."""


@workflow.defn(name="Deliver")
class Delivery:
    """Bring it."""

    @workflow.run
    async def run(self, number: int) -> Parcel:
        return Parcel(number=number)


@nexusrpc.service
class Stock:
    left: nexusrpc.Operation[int, int]
    all: nexusrpc.Operation[None, dict[str, int]]


def calls(made: ToolFunction) -> Existing:
    return Existing.model_validate(made.definition["_calls"])


def test_a_single_model_is_the_tool_s_parameters_and_the_one_argument() -> None:
    made = activity_tool(ship, timeout=5.0)
    assert made.definition == {
        "name": "ship",
        "description": "Send it.",
        "type": "object",
        "properties": {"street": {"type": "string"}, "town": {"type": "string", "default": "Bern"}},
        "required": ["street"],
        "_timeout": 5.0,
        "_calls": {"kind": "activity", "name": "ship"},
        "_output": {"type": "string"},
    }
    assert calls(made).argument_list({"street": "Main"}) == [{"street": "Main"}]


@pytest.mark.parametrize("function", [Bank.charge, Bank().charge])
def test_several_parameters_are_given_by_position(function: Any) -> None:
    made = activity_tool(function)
    assert made.name == "charge-card"
    assert made.definition["properties"]["euros"] == {"type": "number", "description": "How much."}
    assert calls(made).argument_list({"euros": 1.5}) == [1.5]
    assert calls(made).argument_list({"euros": 1.5, "note": "x"}) == [1.5, "main", "x"]


def test_a_workflow_has_the_schema_of_its_run_and_an_id() -> None:
    made = workflow_tool(Delivery, name="deliver", id="delivery-{number}-{gone}")
    assert made.definition["description"] == "Bring it."
    assert made.definition["_retries"] == 0
    assert made.definition["_output"]["required"] == ["number"]
    assert calls(made).workflow_id({"number": 7}, "run/1.0") == "delivery-7-{gone}"
    assert calls(workflow_tool(Delivery)).workflow_id({"number": 7}, "run/1.0") == "run/1.0"


def test_an_operation_has_its_types() -> None:
    left, everything = (nexus_tool(each, service=Stock, endpoint="e") for each in (Stock.left, Stock.all))
    assert calls(left) == Existing(kind="operation", name="left", arguments=["input"], endpoint="e", service="Stock")
    assert left.definition["required"] == ["input"]
    assert calls(everything).argument_list({}) == []
    assert everything.definition["_output"] == {"type": "object", "additionalProperties": {"type": "integer"}}


def test_by_name_the_schema_is_given() -> None:
    made = activity_tool("ship", name="send", input=Address, output={"type": "string"}, description="Send.")
    assert (made.name, made.definition["description"], made.definition["required"]) == ("send", "Send.", ["street"])
    assert calls(made) == Existing(kind="activity", name="ship")
    assert calls(workflow_tool("Ping")).argument_list({}) == []


@tool
def plain() -> None:
    """No activity."""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: activity_tool(plain), "is not an activity with a name: decorate it with @activity.defn"),
        (lambda: workflow_tool(Bank), "is not a workflow with a name: decorate it with @workflow.defn"),
        (lambda: nexus_tool(plain, service=Stock, endpoint="e"), "is not a Nexus operation"),
        (
            lambda: activity_tool(wants_context),
            "Temporal passes arguments by position, so it cannot have a ToolContext",
        ),
        (lambda: activity_tool("x", input=object()), "tool 'x': "),
    ],
)
def test_what_cannot_be_a_tool_is_one_line(make: Any, said: str) -> None:
    with pytest.raises(ToolDefinitionError, match=said) as refused:
        make()
    assert "\n" not in str(refused.value)


def test_what_is_called_is_said_by_the_code_and_no_agent_file() -> None:
    made = activity_tool(ship, dangerous=True)
    assert tool_function(made) is made
    registry = {"ship": made.definition}
    mine = {"name": "post", "_activity": "ship", "properties": {"street": {"type": "string"}}}
    [post] = resolve_tools([mine], registry).values()
    assert post.calls == calls(made)
    assert post.code_dangerous
    assert post.runs == "the activity ship"
    assert resolve_tools([post.definition()], registry)["post"].calls == calls(made)
    for forged in (
        {**mine, "_calls": {"kind": "workflow", "name": "Pay"}},
        {**post.definition(), "_taskQueue": "other"},
    ):
        with pytest.raises(ToolDefinitionError, match="'_calls' can be set by the worker's code only"):
            resolve_tools([forged], registry)
