"""The text of a script's `output(…)` while its line is being written: of one text, alone or under the first keyword."""

from __future__ import annotations

import ast
import re
from typing import Final

from perdure.model.dialects.saying.plain import Plain
from perdure.model.wire import Said
from perdure.values.jsons import dumps

_HEAD: Final = re.compile(r"""\s*output\(\s*(?:([A-Za-z_]\w*)\s*=\s*)?(\"\"\"|'''|"|')""")
_ESCAPE: Final = (
    r"\\(?:[\n\\'\"abfnrtv]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|[0-7]{1,2}(?=[^0-7])|N\{[^}\n]*\})"
)
_BODIES: Final = {
    quote: re.compile(
        rf"(?:[^\\{quote[0]}]+|{_ESCAPE}|{quote[0]}{{1,2}}(?=[^{quote[0]}]))*"
        if len(quote) == 3
        else rf"(?:[^\\\n{quote}]+|{_ESCAPE})*"
    )
    for quote in ('"""', "'''", '"', "'")
}
"""Of a string, as far as whole characters have come."""


def output_so_far(source: str, said: Said) -> str:
    """What the output of a line that is being written begins with; `""` where that is not known yet."""
    head = _HEAD.match(source)
    if head is None:
        return ""
    name, quote = head[1], head[2]
    body = _BODIES[quote].match(source, head.end())
    assert body is not None
    try:
        text = ast.literal_eval(f"{quote}{body[0]}{quote}")
        text.encode()
    except (SyntaxError, ValueError):
        return ""
    closed = source.startswith(quote, body.end())
    plain = Plain()
    known = plain.push(text, closed=closed)
    if name is None or name == said.member:
        return known
    if not said.several:
        return ""
    opened = '"' if known or (closed and not plain.stopped) else ""
    return f'{{"{name}":{opened}{dumps(known)[1:-1]}' + ('"' if closed and not plain.stopped else "")
