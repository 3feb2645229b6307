"""Who may do what in a session (R10.9). A front door has verified sender and rights; here they are only compared."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.errors import MessageRefusedError
from perdure.sessions.wire import EVERYTHING, Message
from perdure.values.limits import MAX_NAME, MAX_SAID


def covers(rights: Iterable[str], wanted: Iterable[str]) -> bool:
    """Whether who has these rights has all that are wanted."""
    has = set(rights)
    return EVERYTHING in has or set(wanted) <= has


def check_right(sender: str, rights: Iterable[str], wanted: str, what: str) -> None:
    """Raises `MessageRefusedError` where `sender` may not."""
    if not covers(rights, [wanted]):
        raise MessageRefusedError(f"{sender!r} may not {what}: it takes the right {wanted!r}")


def check_command(message: Message) -> None:
    """A command needs the right of its name. Raises `MessageRefusedError`."""
    if message.command is not None:
        check_right(message.sender, message.rights, message.command[1:], f"say {message.command}")


def check_name(name: str, what: str) -> None:
    """Whether a key, a sender or an id is one: some printable characters. Raises `MessageRefusedError`."""
    if not name.strip():
        raise MessageRefusedError(f"{what} is empty")
    if not name.isprintable():
        raise MessageRefusedError(f"{what} has characters that cannot be printed: {name[:50]!r}")
    if len(name) > MAX_NAME:
        raise MessageRefusedError(f"{what} has {len(name):,} characters, and {MAX_NAME} is the most: {name[:50]!r}…")


def check_text(text: str) -> None:
    """Whether it can be written as UTF-8 at all: bytes of a terminal that were none come as halves of characters. Raises `MessageRefusedError`."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MessageRefusedError(
            f"what is said is no text: its character {error.start + 1:,} is half of one"
        ) from None


def says(message: Message) -> None:
    """Whether it is a message that can be taken at all. Raises `MessageRefusedError`."""
    for each in (message.text, message.route, *message.rights):
        check_text(each)
    check_name(message.message_id, "the message's id")
    check_name(message.sender, "the sender")
    if (
        len(message.route) > MAX_NAME
        or len(message.rights) > MAX_NAME
        or any(len(each) > MAX_NAME for each in message.rights)
    ):
        raise MessageRefusedError(
            f"a route, or a right, has {MAX_NAME} characters at most, and of rights there are as many"
        )
    if not message.text.strip():
        raise MessageRefusedError("the message is empty")
    if (size := len(message.text.encode())) > MAX_SAID:
        raise MessageRefusedError(
            f"the message has {size:,} bytes, and {MAX_SAID:,} is the most: name a file in it instead"
        )
