"""Write the table of all settings in docs/settings.md anew: `make settings`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from perdure.hosting.settings.showing import table

PAGE: Final = Path(__file__).parents[1] / "docs" / "settings.md"
MARK: Final = "<!-- made from the settings by `make settings`; not to be edited below -->\n"


def page() -> str:
    """The page as it should be: its own words, and the table below the mark."""
    head, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    assert mark, f"{PAGE} has lost its mark"
    return f"{head}{MARK}\n{table()}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
