"""What an answer says while it is being written: the output's text, piece by piece, in every dialect (R10.14).

The pieces add up to the beginning of the text that the output is in the end, and mostly to all of it: what a reference stands for
is known later, so a text is told up to its first one.
"""

from __future__ import annotations

from perdure.model.wire import Said
from perdure.values.jsons import Json, JsonObject, dumps


def text_of(output: Json) -> str:
    """An output as text: a text as it is, of an object with one text that text, else compact JSON; none is `""` (R10.16)."""
    if isinstance(output, dict) and len(output) == 1:
        (only,) = output.values()
        output = only if isinstance(only, str) else output
    return "" if output is None else output if isinstance(output, str) else dumps(output)


def said_by(schema: JsonObject | bool) -> Said:
    """What a schema lets one know of the text of an output before that is whole."""
    if not isinstance(schema, dict) or not isinstance(members := schema.get("properties"), dict):
        return Said()
    required = schema.get("required")
    several = isinstance(required, list) and len(set(map(str, required))) > 1
    if several or len(members) != 1 or schema.get("additionalProperties", False) is not False:
        return Said(several=several)
    ((name, member),) = members.items()
    return Said(member=name if isinstance(member, dict) and member.get("type") == "string" else None)
