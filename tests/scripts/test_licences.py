"""What comes along may be used in an MIT project."""

from __future__ import annotations

import pytest

from scripts.licences import closure, licences, strange


def test_every_licence_of_the_closure_is_of_a_known_kind() -> None:
    found = closure()
    assert {"temporalio", "networkx", "openai"} <= set(found)
    assert {name: strange(licences(one)) for name, one in found.items() if strange(licences(one))} == {}


@pytest.mark.parametrize("said", ["GPL-2.0-or-later", "LGPL-3.0", "AGPLv3", "nothing", "Proprietary", "MIT or so"])
def test_a_new_kind_is_strange(said: str) -> None:
    assert strange([said, "MIT"]) == [said]
