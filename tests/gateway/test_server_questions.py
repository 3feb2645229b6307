"""Questions of MCP servers to people (R21.3), in the forms of the page and of the gateway's protocols."""

from __future__ import annotations

from mcp import types

from perdure import WaitingView
from perdure.client.selection import WaitingRequest
from perdure.gateway.agui._events import interrupt_of
from perdure.gateway.mcp._elicitation import decisions, exact_keys, input_requests
from perdure.pages._decision_forms import PREFIX, fields_of, read_fields
from perdure.values.json import JsonObject

FORM: JsonObject = {
    "type": "object",
    "properties": {"sure": {"type": "boolean"}, "note": {"type": "string", "default": "none"}},
    "required": ["sure"],
}
ASKED = WaitingView(
    call="1.0",
    agent="desk",
    tool="notes.ask",
    params={"about": "a"},
    reason="the MCP server 'notes' asks: Sure?",
    requested_at="2026-11-26T12:00:00+00:00",
    digest="d1",
    question=True,
    server="notes",
    form=FORM,
)


def test_the_page_has_the_fields_of_the_servers_form() -> None:
    fields = fields_of(WaitingRequest("run", ASKED), None)
    assert [(field.name, field.kind, field.text, field.required) for field in fields] == [
        ("sure", "boolean", "", True),
        ("note", "text", "none", False),
    ]
    assert read_fields(fields, {f"{PREFIX}sure": "true"}) == {"sure": True, "note": "none"}


def test_an_mcp_client_fills_the_servers_own_form() -> None:
    waiting = [("", ASKED)]
    ((key, request),) = input_requests(waiting).items()
    assert isinstance(request, types.ElicitRequest)
    assert isinstance(request.params, types.ElicitRequestFormParams)
    assert (request.params.requested_schema, request.params.message) == (FORM, ASKED.sentence)
    assert [*exact_keys(waiting)] == [key]
    accepted, declined = (
        types.ElicitResult(action="accept", content={"sure": True}),
        types.ElicitResult(action="decline"),
    )
    ((answer,), (refusal,)) = (decisions(waiting, {key: each}) for each in (accepted, declined))
    assert answer.decision == {"decision": "answer", "answer": {"sure": True}, "call": "1.0", "digest": "d1"}
    assert refusal.decision["decision"] == "reject"


def test_a_page_with_agui_knows_the_form_and_the_server() -> None:
    interrupt = interrupt_of(ASKED, "r1", "run", "1.0")
    assert interrupt.response_schema == {"type": "object", "properties": {"answer": FORM}, "required": ["answer"]}
    assert interrupt.metadata is not None
    assert interrupt.metadata["perdure"]["server"] == "notes"
