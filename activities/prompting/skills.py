"""Skills: folders with a `SKILL.md`, as in the Agent Skills format: its front matter has `name` and `description` (R10.19)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from perdure.activities.inside import opened, parts_of, read_text, walked
from perdure.errors import ToolError
from perdure.run.parts.recorded import Skill
from perdure.run.parts.texts import cut
from perdure.tools.functions import tool
from perdure.tools.tool import READ_SKILL
from perdure.values.limits import MAX_SKILL_FILE, SKILL_CHARACTERS

SKILL_FILE: Final = "SKILL.md"
LONGEST_NAME: Final = 64
LONGEST_DESCRIPTION: Final = 1024
"""Characters, as the format has it."""
_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_FRONT: Final = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?\r?\n)---[ \t]*(\r?\n|\Z)", re.DOTALL)
_LONGEST_FRONT: Final = 16_000
"""Characters of front matter that are read."""
_FOLDERS: Final = 1000
"""Entries of a folder that are looked at."""
_LISTED: Final = 100
"""Files of a skill that its reader is told of."""


def skills_in(folder: Path) -> Iterator[Skill | str]:
    """Every skill of a folder, by name; in place of one that cannot be used why not, in one line. Links are not followed."""
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
    """A skill by its `SKILL.md`, or what is wrong with it: never raises."""
    front, _ = _split(text)
    if front is None:
        return f"skill {folder!r}: {SKILL_FILE} does not begin with front matter: ---, name and description, ---"
    try:
        about = _texts(front)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 2
        return f"skill {folder!r}: {SKILL_FILE}, line {line}: its front matter is no YAML"
    name, description = about.get("name"), about.get("description")
    if name is None or description is None or not description.strip():
        return f"skill {folder!r}: {SKILL_FILE} needs 'name' and 'description', each a text"
    if name != folder or not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        return (
            f"skill {folder!r}: its name {name[:LONGEST_NAME]!r} must be that of its folder, of at most {LONGEST_NAME} small letters, "
            "digits and single hyphens between them"
        )
    if len(description) > LONGEST_DESCRIPTION:
        return f"skill {folder!r}: its description has {len(description):,} characters; {LONGEST_DESCRIPTION:,} is the most"
    return Skill(name=name, description=description.encode(errors="replace").decode().strip())


def _texts(front: str) -> dict[str, str]:
    """The texts of its outermost keys. Nothing is made of the others: what merges its parts again and again would fill the memory, and tags
    that fit no value raise whatever they like. Raises what YAML's syntax is broken with."""
    root = yaml.compose(front, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        return {}
    return {key.value: value.value for key, value in root.value if _is_text(key) and _is_text(value)}


def _is_text(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == yaml.SafeLoader.DEFAULT_SCALAR_TAG


def _split(text: str) -> tuple[str | None, str]:
    """Front matter, and what follows it."""
    if (found := _FRONT.match(text[:_LONGEST_FRONT])) is None:
        return None, text
    return found[1], text[found.end() :]


def skill_tools(folder: Path) -> list[Callable[..., Any]]:
    """`read_skill` for the skills of this folder."""

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
            with opened(folder, f"{name}/{SKILL_FILE}", os.O_RDONLY):
                pass
        except ToolError:
            raise ToolError("no_such_skill", f"this worker has no skill {name[:LONGEST_NAME]!r}") from None
        parts_of(path)  # none of them leads out of the skill's folder
        with walked(folder, [name], name) as handle:
            files = sorted(_files(handle)) if path == SKILL_FILE else []
        text = read_text(folder, f"{name}/{path}", MAX_SKILL_FILE)
        if path == SKILL_FILE:
            text = _split(text)[1].strip()
        told = [cut(text, SKILL_CHARACTERS)]
        if others := [each for each in files if each != SKILL_FILE]:
            more = f" and {len(others) - _LISTED:,} more" if len(others) > _LISTED else ""
            told.append(f"Files of this skill: {', '.join(others[:_LISTED])}{more}")
        return "\n\n".join(told)

    return [read_skill]


def _files(root: int, below: str = "", deep: int = 0) -> Iterator[str]:
    """The paths of a skill's files: three folders deep, links left out."""
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
