"""What the console lets through to a terminal."""

from __future__ import annotations

import pytest
from rich.text import Text

from perdure.cli._console import get_console, make_table
from perdure.cli._execute import one_line_errors
from perdure.errors import PerdureError

ORDER = "a\x1b]0;title\x07b\x9b31mc\u202ed"


def test_text_of_others_gives_a_terminal_no_orders(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = get_console()
    console.print(Text(ORDER, style="red"), soft_wrap=True)
    console.print(make_table(["x"], [[ORDER]], 80))
    console.print(ORDER, markup=False)
    printed = capsys.readouterr().out
    assert printed.count("]0;title") == 3
    assert "\x1b[31m" in printed  # rich's own
    assert not {"\x1b]", "\x07", "\x9b", "\u202e"} & {
        each for n in range(len(printed)) for each in (printed[n], printed[n : n + 2])
    }


def test_an_error_is_one_line_that_gives_a_terminal_no_orders(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), one_line_errors():
        raise PerdureError(f"no: {ORDER}\nsecond line")
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert not set("\x1b\x07\x9b\u202e") & set(printed)
