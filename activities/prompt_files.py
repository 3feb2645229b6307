"""Files for prompts: skills, workspace files, and paths that stay inside one folder."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from perdure.errors import ProtocolError, ToolError
from perdure.runs.agent import PromptConfig
from perdure.runs.prompt_parts import BootstrapFile, PromptParts, Skill, cut, fit_files
from perdure.tools.decorator import tool
from perdure.tools.tool import READ_SKILL
from perdure.values.json import JsonObject
from perdure.values.limits import MAX_SKILL_FILE, MAX_SKILLS, SKILL_CHARACTERS
from perdure.values.problems import close_names
from perdure.values.provenance import FILE, SKILL

# A path is opened name by name from the folder's own handle, and links are never followed: the checked file is the
# opened file.

DEEPEST: Final = 32
"""Folders in a path: a deeper path is an attack, not a file."""
LONGEST_FILE_NAME: Final = 255
"""Bytes of a name, the maximum of file systems."""


def read_text(folder: Path, path: str, most: int) -> str:
    """Return the text of a file of at most so many bytes. Raises `ToolError`."""
    with open_path(folder, path, os.O_RDONLY) as handle:
        size = os.fstat(handle).st_size
        if size > most:
            raise ToolError("too_large", f"{path} has {size:,} bytes; the limit is {most:,}")
        with os.fdopen(os.dup(handle), "rb") as file:
            data = file.read(most + 1)
    if len(data) > most:
        raise ToolError("too_large", f"{path} has more than {most:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ToolError("not_text", f"{path} is not UTF-8 text: byte {error.start}") from None


def parts_of(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts or "\0" in path or not parts:
        raise ToolError("outside", f"{path[:200]!r} is not a path inside the folder: no '..', not from '/'")
    if len(parts) > DEEPEST:
        raise ToolError("invalid_params", f"the path has {len(parts):,} names; the limit is {DEEPEST}")
    for part in parts:
        try:
            size = len(part.encode())
        except UnicodeEncodeError:
            raise ToolError(
                "invalid_params", f"the name {part[:50]!r} has an unpaired surrogate, which is not a character"
            ) from None
        if size > LONGEST_FILE_NAME:
            raise ToolError(
                "invalid_params", f"the name {part[:50]!r}… has {size:,} bytes; the limit is {LONGEST_FILE_NAME}"
            )
    return parts


@contextmanager
def open_folder(folder: Path, parts: list[str], path: str, *, make: bool = False) -> Iterator[int]:
    """Open the folder that the parts lead to, and yield its handle."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts:
            with skill_errors(path):
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
def open_path(folder: Path, path: str, flags: int) -> Iterator[int]:
    *way, name = parts_of(path)
    with open_folder(folder, way, path) as parent:
        with skill_errors(path):
            # Not blocking: a pipe would wait forever for a writer.
            handle = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise ToolError("not_a_file", f"{path} is not a plain file")
            yield handle
        finally:
            os.close(handle)


@contextmanager
def skill_errors(path: str) -> Iterator[None]:
    """Raise the system's errors with readable messages, without the folder's path."""
    try:
        yield
    except FileNotFoundError:
        raise ToolError("no_such_file", f"there is no {path}") from None
    except OSError as error:
        raise ToolError("not_readable", f"{path}: {os.strerror(error.errno or 0)}; links are not followed") from None


SKILL_FILE: Final = "SKILL.md"
LONGEST_NAME: Final = 64
LONGEST_DESCRIPTION: Final = 1024
"""Characters, the format's own maximum."""
_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_FRONT: Final = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?\r?\n)---[ \t]*(\r?\n|\Z)", re.DOTALL)
_LONGEST_FRONT: Final = 16_000
"""Characters of front matter that are read."""
_FOLDERS: Final = 1000
"""Entries of a folder that are read."""
_LISTED: Final = 100
"""Files of a skill that its reader sees listed."""


def skills_in(folder: Path) -> Iterator[Skill | str]:
    """Yield every skill of a folder by name, or the reason in one line why it cannot be used. Links are not followed."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        yield f"the skills folder cannot be read: {os.strerror(error.errno or 0)}"
        return
    for name in found[:_FOLDERS]:
        if name.startswith("."):
            continue
        try:
            text = read_text(folder, f"{name}/{SKILL_FILE}", MAX_SKILL_FILE)
        except ToolError as error:
            yield f"skill {name!r}: {error.message}"
            continue
        yield read_skill_file(name, text)


def read_skill_file(folder: str, text: str) -> Skill | str:
    """Return a skill from its `SKILL.md`, or the problem. Never raises."""
    front, _ = _split(text)
    if front is None:
        return f"skill {folder!r}: {SKILL_FILE} does not begin with front matter: ---, name and description, ---"
    try:
        about = _texts(front)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 2
        return f"skill {folder!r}: {SKILL_FILE}, line {line}: its front matter is not YAML"
    name, description = about.get("name"), about.get("description")
    if name is None or description is None or not description.strip():
        return f"skill {folder!r}: {SKILL_FILE} needs 'name' and 'description', each a text"
    if name != folder or not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        return (
            f"skill {folder!r}: its name {name[:LONGEST_NAME]!r} must be its folder's name, with at most {LONGEST_NAME} small letters, "
            "digits and single hyphens between them"
        )
    if len(description) > LONGEST_DESCRIPTION:
        return f"skill {folder!r}: its description has {len(description):,} characters; the limit is {LONGEST_DESCRIPTION:,}"
    return Skill(name=name, description=description.encode(errors="replace").decode().strip())


def _texts(front: str) -> dict[str, str]:
    """Return the texts of its outermost keys. Other values are not built: repeated merges would fill the memory, and
    invalid tags raise any error. Raises YAML's own errors for broken syntax.
    """
    root = yaml.compose(front, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        return {}
    return {key.value: value.value for key, value in root.value if _is_text(key) and _is_text(value)}


def _is_text(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == yaml.SafeLoader.DEFAULT_SCALAR_TAG


def _split(text: str) -> tuple[str | None, str]:
    """Return the front matter and the text after it."""
    if (found := _FRONT.match(text[:_LONGEST_FRONT])) is None:
        return None, text
    return found[1], text[found.end() :]


def skill_tools(folder: Path) -> list[Callable[..., Any]]:
    """Return `read_skill` for the skills of this folder."""

    @tool(name=READ_SKILL, safe=True)
    def read_skill(name: str, path: str = SKILL_FILE) -> str:
        """Read a skill: its instructions, or a file that they name.

        Args:
            name: the skill's, as it is listed.
            path: of a file in the skill's folder, with /.
        """
        if not _NAME.fullmatch(name):
            raise ToolError("no_such_skill", f"there is no skill {name[:LONGEST_NAME]!r}")
        try:
            with open_path(folder, f"{name}/{SKILL_FILE}", os.O_RDONLY):
                pass
        except ToolError:
            raise ToolError("no_such_skill", f"this worker has no skill {name[:LONGEST_NAME]!r}") from None
        parts_of(path)  # no such path leads out of the skill's folder
        with open_folder(folder, [name], name) as handle:
            files = sorted(_files(handle)) if path == SKILL_FILE else []
        text = read_text(folder, f"{name}/{path}", MAX_SKILL_FILE)
        if path == SKILL_FILE:
            text = _split(text)[1].strip()
        parts = [cut(text, SKILL_CHARACTERS)]
        if others := [each for each in files if each != SKILL_FILE]:
            more = f" and {len(others) - _LISTED:,} more" if len(others) > _LISTED else ""
            parts.append(f"Files of this skill: {', '.join(others[:_LISTED])}{more}")
        return "\n\n".join(parts)

    return [read_skill]


def _files(root: int, below: str = "", deep: int = 0) -> Iterator[str]:
    """Yield the paths of a skill's files: three folders deep, links left out."""
    with os.scandir(root) as entries:
        found = [entry for _, entry in zip(range(_FOLDERS), entries, strict=False)]
    for entry in found:
        path = f"{below}{os.fsencode(entry.name).decode(errors='replace')}"
        if entry.is_file(follow_symlinks=False):
            yield path
        elif entry.is_dir(follow_symlinks=False) and deep < 3 and not entry.name.startswith("."):
            handle = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
            try:
                yield from _files(handle, f"{path}/", deep + 1)
            finally:
                os.close(handle)


_ALL: Final = "*"


class PromptFolders:
    """The folders of one worker; `untrusted`: the skills and files that others write, as `skill:NAME`, `file:NAME`,
    `skill:*` or `file:*` (R15.2).
    """

    def __init__(
        self, skills: Path | None = None, workspace: Path | None = None, untrusted: Iterable[str] = ()
    ) -> None:
        self._skills, self._workspace = skills, workspace
        self._untrusted = frozenset(untrusted)

    def read(self, wanted: PromptConfig, tools: Collection[str]) -> PromptParts:
        """Return the parts of the prompt of a run with these `tools`. Raises `ProtocolError` for a part that this
        worker does not have.
        """
        skills, left_out = self._read_skills(wanted.skills)
        reader = READ_SKILL
        while reader in tools:
            reader += "_"
        files = list(self._read_files(wanted, left_out))
        return PromptParts(text=wanted.text, skills=skills, reader=reader, files=fit_files(files), left_out=left_out)

    def _read_skills(self, wanted: bool | list[str]) -> tuple[list[Skill], list[str]]:
        if not wanted:
            return [], []
        if self._skills is None:
            raise ProtocolError("config.prompt.skills: the worker has no skills folder: start it with --skills FOLDER")
        found = list(skills_in(self._skills))
        skills = {each.name: each for each in found if isinstance(each, Skill)}
        problems = [each for each in found if isinstance(each, str)]
        if isinstance(wanted, list):
            for name in wanted:
                if name not in skills:
                    why = next((each for each in problems if each.startswith(f"skill {name!r}:")), None)
                    near = f"; it has {', '.join(close_names(name, skills))}" if skills else "; it has none"
                    raise ProtocolError(f"config.prompt.skills: {why or f'the worker has no skill {name!r}{near}'}")
            skills, problems = {name: skills[name] for name in dict.fromkeys(wanted)}, []
        if len(skills) > MAX_SKILLS:
            problems.append(f"{len(skills) - MAX_SKILLS} more skills: the limit is {MAX_SKILLS}")
        shown = list(skills.values())[:MAX_SKILLS]
        return [self._declared(each, SKILL) for each in shown], problems

    def _read_files(self, wanted: PromptConfig, left_out: list[str]) -> Iterable[BootstrapFile]:
        if wanted.workspace is False:
            return
        if self._workspace is None:
            raise ProtocolError("config.prompt.workspace: the worker has no workspace (--workspace)")
        inside = "" if wanted.workspace is True else wanted.workspace
        try:
            way = parts_of(inside) if inside not in ("", ".") else []
            with open_folder(self._workspace, way, inside or "."):
                pass
        except ToolError as error:
            raise ProtocolError(f"config.prompt.workspace: {error.message}") from None
        except OSError:
            raise ProtocolError("config.prompt.workspace: the worker's workspace cannot be read") from None
        for name in wanted.files:
            try:
                text = read_text(self._workspace, "/".join([*way, name]), MAX_SKILL_FILE)
            except ToolError as error:
                if error.code != "no_such_file":
                    left_out.append(f"{name}: {error.message}")
                continue
            text = text.removeprefix("\ufeff").strip()
            if text:
                yield self._declared(BootstrapFile(name=name, text=text, characters=len(text)), FILE)

    def _declared(self, part: Any, kind: str) -> Any:
        return part.model_copy(
            update={"untrusted": not self._untrusted.isdisjoint({f"{kind}{part.name}", f"{kind}{_ALL}"})}
        )


def reading_tool(parts: PromptParts, definitions: Mapping[str, JsonObject]) -> JsonObject:
    """Return the tool by which the model reads the skills that are listed for it, and no others. Raises `ProtocolError`."""
    if (definition := definitions.get(READ_SKILL)) is None:
        raise ProtocolError(f"config.prompt.skills: the worker has no tool {READ_SKILL!r} to read skills")
    properties: JsonObject = dict(definition["properties"])
    properties["name"] = {**properties["name"], "enum": [skill.name for skill in parts.skills]}
    untrusted = any(skill.untrusted for skill in parts.skills)
    about = {"name": parts.reader, "properties": properties, "_activity": READ_SKILL}
    return {**definition, **about, **({"_untrusted": True} if untrusted else {})}
