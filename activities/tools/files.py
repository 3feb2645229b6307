"""Files inside one folder: no way out by `..` or by links.

A path is walked name by name from the folder's own handle, and a link is never followed: what is checked is what is opened.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from typing_extensions import TypedDict

from perdure.errors import ToolDefinitionError, ToolError
from perdure.tools.functions import tool

MAX_BYTES: Final = 1_000_000
MAX_LISTED: Final = 1000
MAX_PARTS: Final = 32
"""Folders in a path: deeper is nobody's file, but a disk full of folders."""
MAX_NAME: Final = 255
"""Bytes of a name, as file systems have it."""


class Written(TypedDict):
    path: str
    bytes: int


class Entry(TypedDict):
    name: str
    kind: Literal["file", "folder", "link"]
    bytes: int | None


def file_tools(root: Path) -> list[Callable[..., Any]]:
    """`read_file`, `write_file` and `list_files` for this folder. Raises `ToolDefinitionError` where there is none."""
    folder = root.resolve()
    if not folder.is_dir():
        raise ToolDefinitionError(f"the folder for files, {root}, does not exist")

    @tool(safe=True)
    def read_file(path: str) -> str:
        """Read a text file.

        Args:
            path: relative to the folder, with /.
        """
        with _opened(folder, path, os.O_RDONLY) as handle:
            size = os.fstat(handle).st_size
            if size > MAX_BYTES:
                raise ToolError("too_large", f"{path} has {size:,} bytes; {MAX_BYTES:,} is the most")
            with os.fdopen(os.dup(handle), "rb") as file:
                data = file.read(MAX_BYTES + 1)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise ToolError("not_text", f"{path} is no UTF-8 text: byte {error.start}") from None

    @tool
    def write_file(path: str, content: str) -> Written:
        """Write a text file, whole; folders on the way are made.

        Args:
            path: relative to the folder, with /.
            content: the file's whole text.
        """
        data = content.encode()
        if len(data) > MAX_BYTES:
            raise ToolError("too_large", f"{len(data):,} bytes; {MAX_BYTES:,} is the most")
        *way, name = _parts(path)
        with _walked(folder, way, path, make=True) as parent:
            _refuse_odd(parent, name, path)
            with _said(path):
                _put(parent, name, data)
        return {"path": path, "bytes": len(data)}

    @tool(safe=True)
    def list_files(path: str = ".") -> list[Entry]:
        """List a folder: names, kinds and sizes.

        Args:
            path: relative to the folder, with /.
        """
        with _walked(folder, [] if path in (".", "") else _parts(path), path) as handle, os.scandir(handle) as entries:
            found = list(itertools.islice(entries, MAX_LISTED + 1))
            if len(found) > MAX_LISTED:
                raise ToolError("too_many", f"{path} has more than {MAX_LISTED:,} entries")
            return sorted((_entry(entry) for entry in found), key=lambda row: row["name"])

    return [read_file, write_file, list_files]


def _put(parent: int, name: str, data: bytes) -> None:
    """Beside it first, then put in its place: a reader sees the old text or the new, and a retry changes nothing."""
    other = f".{uuid.uuid4().hex}.tmp"
    handle = os.open(other, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(other, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(other, dir_fd=parent)
        raise


def _entry(entry: os.DirEntry[str]) -> Entry:
    kind: Literal["file", "folder", "link"] = (
        "link" if entry.is_symlink() else "folder" if entry.is_dir(follow_symlinks=False) else "file"
    )
    size: int | None = None
    with contextlib.suppress(FileNotFoundError):  # gone since it was listed
        size = entry.stat(follow_symlinks=False).st_size if kind == "file" else None
    # A name that is no UTF-8 is shown as well as it can be; nothing reads it by that name.
    return {"name": os.fsencode(entry.name).decode(errors="replace"), "kind": kind, "bytes": size}


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts or "\0" in path or not parts:
        raise ToolError("outside", f"{path[:200]!r} is not a path inside the folder: no '..', not from '/'")
    if len(parts) > MAX_PARTS:
        raise ToolError("invalid_params", f"the path has {len(parts):,} names; {MAX_PARTS} is the most")
    for part in parts:
        try:
            size = len(part.encode())
        except UnicodeEncodeError:
            raise ToolError(
                "invalid_params", f"the name {part[:50]!r} has an unpaired surrogate, which is no character"
            ) from None
        if size > MAX_NAME:
            raise ToolError("invalid_params", f"the name {part[:50]!r}… has {size:,} bytes; {MAX_NAME} is the most")
    return parts


@contextmanager
def _walked(folder: Path, parts: list[str], path: str, *, make: bool = False) -> Iterator[int]:
    """A handle of the folder that the parts lead to."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts:
            with _said(path):
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
def _opened(folder: Path, path: str, flags: int) -> Iterator[int]:
    *way, name = _parts(path)
    with _walked(folder, way, path) as parent:
        with _said(path):
            # Not blocking: a pipe would wait for ever for somebody to write to it.
            handle = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise ToolError("not_a_file", f"{path} is no plain file")
            yield handle
        finally:
            os.close(handle)


def _refuse_odd(parent: int, name: str, path: str) -> None:
    """Only a plain file is written over."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if not stat.S_ISREG(mode):
            raise ToolError("not_a_file", f"{path} is no plain file")


@contextmanager
def _said(path: str) -> Iterator[None]:
    """The system's errors in words, without the folder's own place."""
    try:
        yield
    except FileNotFoundError:
        raise ToolError("no_such_file", f"there is no {path}") from None
    except OSError as error:
        raise ToolError("not_readable", f"{path}: {os.strerror(error.errno or 0)}; links are not followed") from None
