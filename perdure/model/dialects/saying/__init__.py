"""What an answer says while it is being written: the output's text, piece by piece, in every dialect (R10.14).

The pieces add up to the beginning of the text that the output is in the end, and mostly to all of it: what a reference stands for
is known later, so a text is told up to its first one.
"""

from __future__ import annotations

from perdure.values.jsons import Json, dumps


def text_of(output: Json) -> str:
    """An output as text: a string as it is, anything else as compact JSON; none is `""`."""
    return "" if output is None else output if isinstance(output, str) else dumps(output)
