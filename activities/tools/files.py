"""`read_file`, `write_file` and `list_files`: the files inside one folder."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

from typing_extensions import TypedDict

from perdure.activities.prompt_files import open_folder, parts_of, read_text, skill_errors
from perdure.errors import ToolDefinitionError, ToolError
from perdure.tools.decorator import tool

MAX_BYTES: Final = 1_000_000
MAX_LISTED: Final = 1000


class Written(TypedDict):
    path: str
    bytes: int


class FolderEntry(TypedDict):
    name: str
    kind: Literal["file", "folder", "link"]
    bytes: int | None


def file_tools(root: Path) -> list[Callable[..., Any]]:
    """Return `read_file`, `write_file` and `list_files` for this folder. Raise `ToolDefinitionError` where there is
    none.
    """
    folder = root.resolve()
    if not folder.is_dir():
        raise ToolDefinitionError(f"the folder for files, {root}, does not exist")

    @tool(safe=True)
    def read_file(path: str) -> str:
        """Read a text file.

        Args:
            path: relative to the folder, with /.
        """
        return read_text(folder, path, MAX_BYTES)

    @tool
    def write_file(path: str, content: str) -> Written:
        """Write a text file, whole; folders on the way are made.

        Args:
            path: relative to the folder, with /.
            content: the file's whole text.
        """
        data = content.encode()
        if len(data) > MAX_BYTES:
            raise ToolError("too_large", f"{len(data):,} bytes; the limit is {MAX_BYTES:,}")
        *way, name = parts_of(path)
        with open_folder(folder, way, path, make=True) as parent:
            _refuse_odd(parent, name, path)
            with skill_errors(path):
                _put(parent, name, data)
        return {"path": path, "bytes": len(data)}

    @tool(safe=True)
    def list_files(path: str = ".") -> list[FolderEntry]:
        """List a folder: names, kinds and sizes.

        Args:
            path: relative to the folder, with /.
        """
        with (
            open_folder(folder, [] if path in (".", "") else parts_of(path), path) as handle,
            os.scandir(handle) as entries,
        ):
            found = list(itertools.islice(entries, MAX_LISTED + 1))
            if len(found) > MAX_LISTED:
                raise ToolError("too_many", f"{path} has more than {MAX_LISTED:,} entries")
            return sorted((_entry(entry) for entry in found), key=lambda row: row["name"])

    return [read_file, write_file, list_files]


def _put(parent: int, name: str, data: bytes) -> None:
    """Write a temporary file, then rename it: a reader sees the old text or the new one, and a retry changes nothing."""
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


def _entry(entry: os.DirEntry[str]) -> FolderEntry:
    kind: Literal["file", "folder", "link"] = (
        "link" if entry.is_symlink() else "folder" if entry.is_dir(follow_symlinks=False) else "file"
    )
    size: int | None = None
    with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
        size = entry.stat(follow_symlinks=False).st_size if kind == "file" else None
    # A name that is not UTF-8 is shown as far as possible; no tool can read it by that name.
    return {"name": os.fsencode(entry.name).decode(errors="replace"), "kind": kind, "bytes": size}


def _refuse_odd(parent: int, name: str, path: str) -> None:
    """Raise `ToolError` unless the place is free or holds a plain file."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if not stat.S_ISREG(mode):
            raise ToolError("not_a_file", f"{path} is not a plain file")
