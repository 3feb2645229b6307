"""Sizes: measured once for each value, summed for each task and history, and cut to fit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from json.encoder import encode_basestring
from typing import Final, overload

from perdure.values.json import Json, JsonObject, ReadOnlyJson, dumps
from perdure.values.limits import (
    COMMAND,
    FREE_AT_ONCE,
    FREE_RESULT,
    HELD_BACK,
    HISTORY_BYTES,
    HISTORY_EVENTS,
    INLINE,
    LEAST_RESULT,
    MAX_COMMANDS,
    MAX_INLINE,
    MAX_SENT,
    NEAR,
    OVER,
    QUICK,
    bytes_text,
)

_KEPT: Final = 512
"""Bytes from which a size is cached: a smaller value is measured as fast again."""
_SCALARS: Final = {int, float, bool, type(None)}
_FLAT: Final = {*_SCALARS, str}
_PLAIN: Final = {*_FLAT, list, dict}
_MANY: Final = 100
"""Items from which a list is measured as a whole: single measurements take ten times as long."""
_FEW: Final = 16
"""Maximum of items in each of its parts, and in their parts."""
_MOST_WRITTEN: Final = 2_000_000
"""Maximum of parts and of characters of texts: the largest value that Temporal carries has no more. A shared part
counts at each place.
"""


class TooManyBytesError(Exception):
    """A value that exceeds its limit of bytes."""


class Sizes:
    """Bytes of values as compact JSON. The key of a value is its identity: it must not be changed once it was measured.

    Sizes in `base` are known here too, and new ones are kept only here: a query changes nothing.
    """

    def __init__(self, base: Sizes | None = None) -> None:
        self._base = base
        # The value is kept beside its size, so that its id cannot be used again while it counts.
        self._known: dict[int, tuple[ReadOnlyJson, int]] = {}

    def note(self, value: ReadOnlyJson, size: int) -> None:
        """Record the size of a value that its creator has measured."""
        if size >= _KEPT:
            self._known[id(value)] = value, size

    def of(self, value: ReadOnlyJson) -> int:
        """Return the bytes of JSON; parts that were measured before are not measured again."""
        if isinstance(value, str):
            if len(value) < _KEPT:
                return text_size(value)
        elif not isinstance(value, dict) and not isinstance(value, list):  # `dict | list` takes twice as long
            return _scalar_size(value) if type(value) in _SCALARS else 1
        size = self._remembered(value)
        if size is None:
            size = self._measure(value)
            self.note(value, size)
        return size

    def of_composed(self, value: Json, known_ids: Collection[int], most: int) -> tuple[int, int, int]:
        """Return the bytes of a value composed of others, the number of new bytes, and the number of examined parts.

        A part in many places is measured once. The first place of a part is not new if the part was measured before, or
        its identity is in `known_ids`. Raises `TooManyBytesError` as soon as more than `most` bytes are found.
        """
        seen: dict[int, int] = {}
        looked_at = 0

        def part(item: Json) -> tuple[int, int]:
            nonlocal looked_at
            if not isinstance(item, dict | list | str) or (isinstance(item, str) and len(item) < _KEPT):
                size = self.of(item)
                return size, size
            if (again := seen.get(id(item))) is not None:
                return again, again
            if id(item) in known_ids or self.knows(item):
                size = seen[id(item)] = self.of(item)
                return size, 0
            if isinstance(item, str):
                size = new = self.of(item)
            elif isinstance(item, list) and set(map(type, item)) <= _SCALARS:
                size = new = len(dumps(item))
            else:
                looked_at += len(item)
                size = new = _frame(item)
                for child in item.values() if isinstance(item, dict) else item:
                    if isinstance(child, str) and len(child) < _KEPT:  # most parts: `part` would call two functions
                        more = fresh = text_size(child)
                    else:
                        more, fresh = part(child)
                    size += more
                    new += fresh
                    if size > most:
                        raise TooManyBytesError
            seen[id(item)] = size
            self.note(item, size)
            return size, new

        size, new = part(value)
        if size > most:
            raise TooManyBytesError
        return size, new, looked_at

    def knows(self, value: ReadOnlyJson) -> bool:
        """Whether the value's size is cached."""
        return self._remembered(value) is not None

    def _remembered(self, value: ReadOnlyJson) -> int | None:
        known = self._known.get(id(value))
        if known is None:
            return None if self._base is None else self._base._remembered(value)
        return known[1]

    def _measure(self, value: dict[str, ReadOnlyJson] | list[ReadOnlyJson] | str) -> int:
        if isinstance(value, str):
            return text_size(value)
        parts = value.values() if isinstance(value, dict) else value
        if len(value) <= _FEW and _FLAT.issuperset(map(type, parts)):
            lengths = [len(each) for each in parts if type(each) is str]
            if not lengths or max(lengths) < _KEPT:  # else the size of a text may be cached
                return _size_of_written(value)
        if isinstance(value, list) and len(value) > _MANY and (found := _size_of_many(value)) is not None:
            return found
        return _frame(value) + sum(map(self.of, parts))

    def retain(self, values: Iterable[ReadOnlyJson]) -> None:
        """Drop the sizes of all values except these: other values are measured again when needed."""
        known = self._known
        self._known = {id(value): known[id(value)] for value in values if id(value) in known}


def _size_of_many(value: list[ReadOnlyJson]) -> int | None:
    """Return the bytes of a list of many small parts, at the encoder's speed; `None` for another value.

    A part may have many places, and is written at each: the counted parts bound the written text.
    """
    level: list[ReadOnlyJson] = value
    count = 0
    while level:
        count += len(level)
        kinds = set(map(type, level))
        if count > _MOST_WRITTEN or not kinds <= _PLAIN:
            return None
        if kinds <= _SCALARS:
            break
        # Often all parts have one kind: a million parts are not searched for other kinds.
        lists = [each for each in level if type(each) is list] if list in kinds else []
        objects = [each for each in level if type(each) is dict] if dict in kinds else []
        texts = [each for each in level if type(each) is str] if str in kinds else []
        lengths = [*map(len, chain(texts, chain.from_iterable(objects)))]
        count += sum(lengths)
        if max(map(len, chain(lists, objects)), default=0) > _FEW or max(lengths, default=0) >= _KEPT:
            return None
        level = [*chain.from_iterable(lists), *chain.from_iterable(map(dict.values, objects))]
    return _size_of_written(value)


def _size_of_written(value: ReadOnlyJson) -> int:
    """Return the bytes of a value by writing it."""
    return _bytes_of(dumps(value))


def _bytes_of(written: str) -> int:
    return len(written) if written.isascii() else len(written.encode(errors="surrogatepass"))


def _frame(value: Mapping[str, ReadOnlyJson] | Sequence[ReadOnlyJson]) -> int:
    """Return the bytes of a list or an object beside its items: brackets, commas, keys."""
    if isinstance(value, dict):
        return max(2, 1 + len(value) + sum([text_size(key) + 1 for key in value]))
    return max(2, 1 + len(value))


def _scalar_size(value: ReadOnlyJson) -> int:
    if value is None or value is True:
        return 4
    # As `json` writes them, in a fraction of its time: a list of lists has a million.
    return 5 if value is False else len(repr(value)) if isinstance(value, int) else len(dumps(value))


def text_size(text: str) -> int:
    """Return the bytes of a string as JSON, with its quotes; also for a string that cannot be encoded."""
    return _bytes_of(encode_basestring(text))


def preview(value: Json, limit: int, *, compact: bool = False) -> str:
    """Return the beginning of a value as JSON, at most `limit` characters; with `compact` without blanks. The cost
    depends on the result, not on the value's size.
    """
    found: list[str] = []
    left = limit
    for piece in _pieces(value, limit + 1, "" if compact else " "):
        found.append(piece)
        left -= len(piece)
        if left < 0:
            break
    text = "".join(found)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _pieces(value: Json, limit: int, blank: str) -> Iterator[str]:
    if isinstance(value, str):
        yield encode_basestring(value[:limit])
    elif isinstance(value, dict):
        yield "{"
        for number, (key, child) in enumerate(value.items()):
            yield f"{f',{blank}' if number else ''}{encode_basestring(key[:limit])}:{blank}"
            yield from _pieces(child, limit, blank)
        yield "}"
    elif isinstance(value, list):
        yield "["
        for number, child in enumerate(value):
            if number:
                yield f",{blank}"
            yield from _pieces(child, limit, blank)
        yield "]"
    else:
        yield dumps(value) if type(value) in _SCALARS else "…"


# A value is cut to fit its room. A cut part is replaced by its beginning and its size.

LEAST: Final = 120
"""Minimum of bytes of a cut part; a part with less room is left out and counted."""


_LOOKED_AT: Final = 5_000
"""Maximum of first parts of a value that are examined to cut it: a list of numbers may have 400,000 (R18.5)."""
_MISSES: Final = 16
"""Parts in a row that do not fit after which no further part is examined."""


@overload
def cut_to(value: JsonObject, room: int, sizes: Sizes | None = None) -> JsonObject: ...


@overload
def cut_to(value: Json, room: int, sizes: Sizes | None = None) -> Json: ...


def cut_to(value: Json, room: int, sizes: Sizes | None = None) -> Json:
    """Return the value, if its JSON has at most `room` bytes; else with its largest parts cut until it fits (`room` ≥
    `LEAST`).
    """
    sizes = sizes or Sizes()
    room = max(room, LEAST)
    if sizes.of(value) <= room:
        return value
    if isinstance(value, str):
        return _cut_text(value, room, sizes.of(value))
    if isinstance(value, dict):
        keys = list(islice(value, _LOOKED_AT))
        parts = _cut_parts(((text_size(key) + 2, value[key]) for key in keys), room - 40, sizes)
        left_out = len(value) - len(parts)
        kept = {keys[place]: part for place, part in parts.items()}
        return kept | ({"…": f"{left_out} more"} if left_out else {})
    if isinstance(value, list):
        parts = _cut_parts(((1, child) for child in value[:_LOOKED_AT]), room - 40, sizes)
        left_out = len(value) - len(parts)
        return [*parts.values(), *([f"… {left_out} more"] if left_out else [])]
    return "…"  # a number with more digits than the room


def clip_text(text: str, room: int) -> str:
    """Return the longest beginning of a text that has at most `room` bytes as JSON, with its quotes, without a note on
    the rest."""
    while (size := text_size(text)) > room and text:
        text = text[: min(len(text) - 1, len(text) * room // size)]
    return text


def _cut_text(text: str, room: int, size: int) -> str:
    note = f"… [cut: {size:,} bytes]"
    length = room
    while text_size(text[:length] + note) > room:
        # A character has one to six bytes: the excess shows the number of characters to drop.
        length = min(length - 1, length * (room - text_size(note)) // text_size(text[:length]))
    return text[: max(length, 0)] + note


def _cut_parts(parts: Iterable[tuple[int, Json]], room: int, sizes: Sizes) -> dict[int, Json]:
    """Return the parts that fit, by their place: small parts whole, the others cut to equal shares of the room.

    `parts`: of each part the bytes that it needs beside its value, and the value. If less than `LEAST` is left for each,
    the first ones are kept. A part is measured only while some still fit: a value may have thousands.
    """
    kept: list[tuple[int, int, Json]] = []
    needs: list[int] = []
    shares: list[int] = []
    misses = 0
    for place, (own, value) in enumerate(parts):
        size = sizes.of(value)
        least = own + min(size, LEAST)
        if least > room:
            misses += 1
            if misses > _MISSES:
                break
            continue
        misses = 0
        room -= least
        kept.append((place, own, value))
        needs.append(own + size)
        shares.append(least)
    smallest_first = sorted(range(len(kept)), key=lambda index: needs[index] - shares[index])
    for done, index in enumerate(smallest_first):
        more = min(needs[index] - shares[index], room // (len(kept) - done))
        shares[index] += more
        room -= more
    return {
        place: value if share >= need else cut_to(value, share - own, sizes)
        for (place, own, value), need, share in zip(kept, needs, shares, strict=True)
    }


def allot_room(sizes: Sequence[int], room: int) -> list[int]:
    """Return the room of the parts of a document, the most important first: each gets a sixteenth, and then the room
    that it needs."""
    shares = [min(size, room // (2 * len(sizes) + 1)) for size in sizes]
    room -= sum(shares)
    for index, size in enumerate(sizes):
        more = min(size - shares[index], room)
        shares[index] += more
        room -= more
    return shares


class TaskBudget:
    """The budget for the commands of the current workflow task. A task's key is a unique number: the length of its
    history.
    """

    def __init__(self, max_bytes: int = MAX_SENT, max_commands: int = MAX_COMMANDS) -> None:
        self._max_bytes, self._max_commands = max_bytes, max_commands
        self._task = -1
        self.bytes = 0
        self.commands = 0

    def take(self, task: int, size: int, quick: int = 0) -> bool:
        """Whether a command of `size` bytes may be sent with this task, which then counts it. The first may have any
        size.

        `quick` is the number of calls that may return soon, see `QuickCalls`.
        """
        if task != self._task:
            self._task, self.bytes, self.commands = task, 0, 0
        size += COMMAND
        if max(self.commands, quick) >= self._max_commands or (self.commands and self.bytes + size > self._max_bytes):
            return False
        self.bytes += size
        self.commands += 1
        return True

    def take_call(self, task: int, size: int, quick: int = 0) -> bool | None:
        """Whether a call's parameters of `size` bytes are sent with the call; `None`: this task does not send the call.
        Parameters that are not sent are a claim check.
        """
        if not self.take(task, 0, quick):
            return None
        inline = size <= INLINE and self.bytes + size <= self.commands * COMMAND + MAX_INLINE
        self.bytes += size if inline else 0
        return inline


class QuickCalls:
    """The running calls that began less than `QUICK` seconds ago: they may all return soon.

    The time `None` is unknown: in a task whose time may differ in a replay. Its calls count from the next known time.
    """

    def __init__(self) -> None:
        self._begun: dict[str, float | None] = {}

    def begin(self, call: str, now: float | None) -> None:
        """Record the start of a call."""
        self._begun.pop(call, None)
        self._begun[call] = now

    def end(self, call: str) -> None:
        """Record the end of a call."""
        self._begun.pop(call, None)

    def count(self, now: float | None) -> int:
        """Return the number of quick calls."""
        if now is not None:
            for call, begun in list(self._begun.items()):
                if begun is None:
                    self._begun[call] = now
                elif begun + QUICK <= now:
                    del self._begun[call]
                else:
                    break
        return len(self._begun)


def first_fitting(sizes: Iterable[int], room: int) -> int:
    """Return the number of first items that one answer holds, at least 1."""
    count = 0
    for size in sizes:
        room -= size
        if count and room < 0:
            break
        count += 1
    return count


class HistoryBudget:
    """The bytes of a history, for the results of running calls: each call has a share, and claims room before it takes
    more.

    Claims are granted one after the other, in their order, so that the server need not hold back more than it can.
    `used` is the present size of the history, in bytes. All decisions follow from the history alone, so a replay
    repeats them.
    """

    def __init__(self, room: int = int(HISTORY_BYTES * OVER)) -> None:
        self._room = room
        self._held: dict[str, int] = {}
        self._claims: dict[str, int] = {}
        """Undecided claims, in their order."""
        self.coming: dict[str, int] = {}
        """Granted results that have not arrived."""
        self._decided: dict[str, bool] = {}

    def free(self, call: str, used: int) -> int:
        """Return the bytes that the call's result may have without a claim; they are reserved for it until it is
        settled."""
        held = sum(self._held.values())
        at_once = max(FREE_AT_ONCE, min(FREE_RESULT, (HELD_BACK - held) // 4))
        self._held[call] = max(LEAST_RESULT, min(at_once, (self._room - used - held) // 64))
        return self._held[call]

    def holds(self, size: int, used: int) -> bool:
        """Whether there is room for this many bytes at once, and for a result, beside all reservations."""
        return used + sum(self._held.values()) + size + LEAST_RESULT <= self._room

    def claim(self, call: str, size: int) -> None:
        """Claim room for a result of `size` bytes. A repeated claim changes nothing, unless the result has grown (a
        retry's)."""
        if call in self._held and (call not in self._decided or size > self._held[call]):
            self._decided.pop(call, None)
            self.coming.pop(call, None)
            self._claims[call] = max(size, self._claims.get(call, 0))

    def decide(self, used: int) -> list[str]:
        """Decide claims, and return their calls: see `granted`. A decision depends on the history's room and on all
        granted results."""
        now: list[str] = []
        for call, size in list(self._claims.items()):
            others = sum(self._held.values()) - self._held.get(call, 0)
            fits = used + others + size <= self._room
            if fits and self.coming and sum(self.coming.values()) + size > HELD_BACK:
                break
            if fits:
                self._held[call] = self.coming[call] = max(size, self._held.get(call, 0))
            del self._claims[call]
            self._decided[call] = fits
            now.append(call)
        return now

    def granted(self, call: str) -> bool | None:
        """Whether the claim of the call's result was granted; `None`: undecided. A settled result has no grant."""
        return self._decided.get(call) if call in self._held else False

    @property
    def turns(self) -> bool:
        """Whether a claim waits for the arrival of other results."""
        return bool(self._claims)

    def settle(self, call: str) -> None:
        """Settle a claim: the result is in the history, or will not come."""
        for each in (self._held, self._claims, self.coming, self._decided):
            each.pop(call, None)


def history_full(events: int, size: int, part: float = NEAR) -> str | None:
    """Return the reason why a history has room only for a last Request, as text; `None` while it has more."""
    if size >= HISTORY_BYTES * part:
        return f"the run's history has {bytes_text(size)}; the limit is {bytes_text(HISTORY_BYTES)}"
    if events >= HISTORY_EVENTS * part:
        return f"the run's history has {events:,} events; the limit is {HISTORY_EVENTS:,}"
    return None
