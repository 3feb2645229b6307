"""What is made of values: longer texts with their sum bounded before anything is built, and what formulas give (R3.1, R16.3, R18.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perdure.errors import FormulaError, TooLargeError, clip
from perdure.values.formulas import Formula
from perdure.values.formulas.steps import Steps
from perdure.values.jsons import MAX_PASSED, Json, depth_of, dumps
from perdure.values.limits import MAX_PAYLOAD, MAX_TEXT, MAX_TEXTS, MAX_TEXTS_KEPT, said
from perdure.values.limits.sizes import Sizes, TooManyBytesError
from perdure.values.limits.steps import Checks
from perdure.values.paths import UNKNOWN
from perdure.values.references import MISSING, Missing

_REMEMBERED: Final = 512
"""Characters of a text from which on it is remembered: below that making it again is as fast."""
_MADE: Final = 16
_DEEP: Final = 20_000
"""Bytes of a value from which on its depth is remembered."""
_DEPTHS: Final = 256
"""Values of which it is."""
_JOINED: Final = 200
"""Bytes of text that take as long to make of a value, and to join, as one step of a check."""


class Texts:
    """The texts of one plan, or of one output.

    One may have `most` bytes, as much as any value but no more than `MAX_TEXT`, and all together `total`. `sizes` knows what the
    values measure.

    A value is known by its identity: it must not be changed once it was embedded. What is made counts as steps of `checks`, so
    that what does not fit into a task goes with the next (R18.5).
    """

    def __init__(
        self,
        most: int = MAX_PAYLOAD,
        sizes: Sizes | None = None,
        checks: Checks | None = None,
        *,
        total: int = MAX_TEXTS,
    ) -> None:
        self._whole, self._most, self._total = most, min(most, MAX_TEXT), total
        self._sizes = Sizes() if sizes is None else sizes
        self._checks = Checks() if checks is None else checks
        # The value is kept beside its text, so that its id cannot be used again while it counts; the oldest first.
        self._made: dict[int, tuple[Json, str]] = {}
        self._kept = 0
        self._joined = 0
        self._deep: dict[int, tuple[Json, int]] = {}

    def join(self, parts: Sequence[Json | Missing]) -> str:
        """The parts as one text: a text as it is, any other value as JSON, what is not known as `…`.

        Raises `TooLargeError`, and has built nothing, where the text would be larger than it may be, by itself or with those before.
        """
        known = ["…" if part is UNKNOWN or part is MISSING else part for part in parts]
        if (short := _short(known)) is not None:
            self._joined += len(short)
            return short
        self._check(sum(map(self._least, known)))
        texts = [part if isinstance(part, str) else self._text(part) for part in known]
        size = 2 + sum(self._sizes.of(text) - 2 for text in texts)
        self._check(size)
        text = "".join(texts)
        self._sizes.note(text, size)
        self._joined += size
        self._checks.taken += size // _JOINED
        return text

    def check_whole(self, value: Json) -> None:
        """Raises `TooLargeError` for parameters that are more than a call may have: a value may be read a thousand times."""
        if (size := self._sizes.of(value)) > self._whole:
            raise TooLargeError(
                f"the parameters have {said(size)} with their references resolved; {self._whole:,} is the most"
            )

    def placed(self, value: Json | Missing, level: int) -> Json | Missing:
        """The value, to stand `level` levels deep. Raises `TooLargeError` where that would be nested too deeply to be read back."""
        if isinstance(value, dict | list) and level + self._depth(value) > MAX_PASSED:
            raise TooLargeError(f"nested more than {MAX_PASSED} levels deep with what it refers to")
        return value

    def _depth(self, value: Json) -> int:
        """Levels of a value. Of what is large it is remembered: it may stand in something else the next time."""
        if (size := self._sizes.of(value)) < _DEEP:
            return depth_of(value)
        if (known := self._deep.get(id(value))) is not None:
            return known[1]
        self._checks.taken += size // _MADE
        inside = value.values() if isinstance(value, dict) else value
        nested = [child for child in inside if isinstance(child, dict | list)]
        measured = [child for child in nested if self._sizes.knows(child)]
        depth = depth_of(nested if not measured else [child for child in nested if not self._sizes.knows(child)])
        for child in measured:
            if depth <= MAX_PASSED:
                depth = max(depth, 1 + self._depth(child))
        if len(self._deep) == _DEPTHS:
            del self._deep[next(iter(self._deep))]
        self._deep[id(value)] = value, depth
        return depth

    def computed(self, formula: Formula, values: Sequence[Json], steps: Steps) -> Json:
        """What the formula gives, within `steps`, which count like a check's.

        Raises `FormulaError`, with the formula in it, and `TooLargeError` where that is larger than any value may be, or where
        what all formulas and texts have made would be.
        """
        before = steps.left
        try:
            value, made = formula.measured(values, steps, self._sizes, self._whole)
        except FormulaError as error:
            raise FormulaError(f"{error.message}, in {clip(formula.text, 200)!r}", error.line, error.column) from None
        except TooManyBytesError:
            raise TooLargeError(
                f"{clip(formula.text, 200)!r} gives a value of more than {said(self._whole)}, which is the most"
            ) from None
        finally:
            self._checks.taken += before - max(steps.left, 0)
        self._check(made)
        self._joined += made
        return value

    def _least(self, part: Json) -> int:
        """Bytes that the part has at least: as JSON it is a text that has to be quoted once more."""
        return self._sizes.of(part) - (2 if isinstance(part, str) else 0)

    def _check(self, size: int) -> None:
        if size > self._most:
            raise TooLargeError(
                f"a text would have {said(size)} with what is embedded in it, and {self._most:,} is the most"
            )
        if self._joined + size > self._total:
            raise TooLargeError(
                f"the texts here that values are embedded in would have {said(self._joined + size)} together, and "
                f"{self._total:,} is the most"
            )

    def _text(self, value: Json) -> str:
        made = self._made.get(id(value))
        if made is not None:
            return made[1]
        text = dumps(value)
        self._checks.taken += len(text) // _MADE
        if len(text) >= _REMEMBERED:
            self._made[id(value)] = value, text
            self._kept += len(text)
            while self._kept > MAX_TEXTS_KEPT and len(self._made) > 1:
                self._kept -= len(self._made.pop(next(iter(self._made)))[1])
        return text


def _short(parts: Sequence[Json]) -> str | None:
    """The parts as one text if it is so short that there is nothing to measure: most are."""
    left = _REMEMBERED
    texts = []
    for part in parts:
        if not isinstance(part, str):
            if not isinstance(part, int | float):
                return None
            part = dumps(part)
        left -= len(part)
        if left < 0:
            return None
        texts.append(part)
    return "".join(texts)
