"""Files inside one folder: no way out by `..` or by links.

A path is walked name by name from the folder's own handle, and a link is never followed: what is checked is what is opened.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from perdure.errors import ToolError

DEEPEST: Final = 32
"""Folders in a path: deeper is nobody's file, but a disk full of folders."""
LONGEST_NAME: Final = 255
"""Bytes of a name, as file systems have it."""


def read_text(folder: Path, path: str, most: int) -> str:
    """The text of a file of at most so many bytes. Raises `ToolError`."""
    with opened(folder, path, os.O_RDONLY) as handle:
        size = os.fstat(handle).st_size
        if size > most:
            raise ToolError("too_large", f"{path} has {size:,} bytes; {most:,} is the most")
        with os.fdopen(os.dup(handle), "rb") as file:
            data = file.read(most + 1)
    if len(data) > most:
        raise ToolError("too_large", f"{path} has more than {most:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ToolError("not_text", f"{path} is no UTF-8 text: byte {error.start}") from None


def parts_of(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts or "\0" in path or not parts:
        raise ToolError("outside", f"{path[:200]!r} is not a path inside the folder: no '..', not from '/'")
    if len(parts) > DEEPEST:
        raise ToolError("invalid_params", f"the path has {len(parts):,} names; {DEEPEST} is the most")
    for part in parts:
        try:
            size = len(part.encode())
        except UnicodeEncodeError:
            raise ToolError(
                "invalid_params", f"the name {part[:50]!r} has an unpaired surrogate, which is no character"
            ) from None
        if size > LONGEST_NAME:
            raise ToolError("invalid_params", f"the name {part[:50]!r}… has {size:,} bytes; {LONGEST_NAME} is the most")
    return parts


@contextmanager
def walked(folder: Path, parts: list[str], path: str, *, make: bool = False) -> Iterator[int]:
    """A handle of the folder that the parts lead to."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts:
            with saying(path):
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=handle)
                following = os.open(part, flags, dir_fd=handle)
            os.close(handle)
            handle = following
        yield handle
    finally:
        os.close(handle)


@contextmanager
def opened(folder: Path, path: str, flags: int) -> Iterator[int]:
    *way, name = parts_of(path)
    with walked(folder, way, path) as parent:
        with saying(path):
            # Not blocking: a pipe would wait for ever for somebody to write to it.
            handle = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise ToolError("not_a_file", f"{path} is no plain file")
            yield handle
        finally:
            os.close(handle)


@contextmanager
def saying(path: str) -> Iterator[None]:
    """The system's errors in words, without the folder's own place."""
    try:
        yield
    except FileNotFoundError:
        raise ToolError("no_such_file", f"there is no {path}") from None
    except OSError as error:
        raise ToolError("not_readable", f"{path}: {os.strerror(error.errno or 0)}; links are not followed") from None
