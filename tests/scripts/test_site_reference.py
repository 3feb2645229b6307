"""The docstrings as the site's reference reads them."""

from __future__ import annotations

import pytest

pytest.importorskip("griffe")
from scripts.site_reference import paragraphs


def test_a_block_of_code_is_one_paragraph_with_its_empty_lines() -> None:
    code = "```python\nfrom shop import pay\n\npay(3)\n```"
    assert paragraphs(f"Pay.\n\n`euros`: how many.\n\n{code}\n\nRaises nothing.") == [
        "Pay.",
        "`euros`: how many.",
        code,
        "Raises nothing.",
    ]
