"""The parameters of an undo, from a call and its result (R23.4)."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.tools.undo import Undo, complete_params, undo_params
from perdure.values.json import JsonObject
from perdure.values.references import MISSING

TARGET: Any = {"properties": {"city": {}, "room": {"default": "any"}}, "required": ["city"]}
"""Schema of an undo tool that takes a room back, or any room of the city."""


@pytest.mark.parametrize(
    ("written", "params", "made"),
    [
        (None, {"city": "Rome", "room": "12"}, {"city": "Rome", "room": "12"}),
        (None, {"city": "Rome"}, None),
        ({"city": "†params.city"}, {"city": "Rome"}, {"city": "Rome"}),
        ({"city": "†params.city", "room": "†params.room"}, {"city": "Rome"}, {"city": "Rome", "room": "any"}),
        ({"city": "†params.city", "room": "†result.room"}, {"city": "Rome"}, None),
        ({"city": "†params.city", "room": "{†params.room} {†result}"}, {"city": "Rome"}, None),
    ],
    ids=["by-name", "by-name-in-part", "mapped", "mapped-default", "mapped-result", "mapped-text"],
)
def test_r23_4_without_a_usable_result_no_parameter_may_come_from_it(
    written: JsonObject | None, params: JsonObject, made: JsonObject | None
) -> None:
    """The result may have a room, and a field of the result comes before a default."""
    undo = Undo(tool="unbook", params=written)
    complete = complete_params(undo, {"room": "any"}, params, MISSING)
    problem = "unbook needs its result, which cannot be used"
    assert undo_params(undo, TARGET, complete, MISSING) == (({}, problem) if made is None else (made, None))
