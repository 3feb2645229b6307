"""Text forms: how the text of an answer shows its output."""

from __future__ import annotations

from typing import Final, Literal

from perdure.values.json import Json, JsonObject, WireModel


class TextForm(WireModel, frozen=True):
    """The way in which a text shows an output."""

    kind: Literal["text", "json", "member", "remark"] = "text"
    """`text`: the output is this text. `json`: the text is the output's JSON. `member`: the text is the only member of
    the output. `remark`: the text is no output."""
    member: str | None = None
    """Name of the only member."""

    def event_data(self) -> JsonObject:
        """Return the keys of an event's data; none for a plain text."""
        data: JsonObject = {} if self.kind == "text" else {"form": self.kind}
        return data if self.member is None else {**data, "member": self.member}

    @classmethod
    def of_event(cls, data: JsonObject) -> TextForm:
        """Return the form that an event's data names."""
        return cls.model_validate({"kind": data.get("form", "text"), "member": data.get("member")})


PLAIN: Final = TextForm()
AS_JSON: Final = TextForm(kind="json")
REMARK: Final = TextForm(kind="remark")


def text_form(output: Json) -> TextForm:
    """Return the form of the text that shows a whole output."""
    if isinstance(output, dict) and len(output) == 1:
        ((name, only),) = output.items()
        return TextForm(kind="member", member=name) if isinstance(only, str) else AS_JSON
    return PLAIN if output is None or isinstance(output, str) else AS_JSON
