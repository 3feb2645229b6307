"""What a run is told of skills and of a workspace's files, read once, at its start (R10.19, R12.5)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from perdure.activities.inside import parts_of, read_text, walked
from perdure.activities.prompting.skills import skills_in
from perdure.errors import ProtocolError, ToolError
from perdure.run.parts.config import PromptConfig
from perdure.run.parts.recorded import BootstrapFile, Parts, Skill, fitted
from perdure.tools.tool import READ_SKILL
from perdure.values.jsons import JsonObject
from perdure.values.limits import MAX_SKILL_FILE, MAX_SKILLS
from perdure.values.problems import close_names
from perdure.values.sources import FILE, SKILL

_ALL: Final = "*"


class Shelf:
    """The folders of one worker; `untrusted`: what of them others write, as `skill:NAME`, `file:NAME`, `skill:*` or `file:*` (R15.2)."""

    def __init__(
        self, skills: Path | None = None, workspace: Path | None = None, untrusted: Iterable[str] = ()
    ) -> None:
        self._skills, self._workspace = skills, workspace
        self._untrusted = frozenset(untrusted)

    def read(self, wanted: PromptConfig, tools: Collection[str]) -> Parts:
        """The parts that a run with these `tools` is told. Raises `ProtocolError` for what this worker does not have."""
        skills, left_out = self._read_skills(wanted.skills)
        reader = READ_SKILL
        while reader in tools:
            reader += "_"
        files = list(self._read_files(wanted, left_out))
        return Parts(text=wanted.text, skills=skills, reader=reader, files=fitted(files), left_out=left_out)

    def _read_skills(self, wanted: bool | list[str]) -> tuple[list[Skill], list[str]]:
        if not wanted:
            return [], []
        if self._skills is None:
            raise ProtocolError("config.prompt.skills: the worker was started without a folder of them (--skills)")
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
            problems.append(f"{len(skills) - MAX_SKILLS} more skills: {MAX_SKILLS} is the most")
        told = list(skills.values())[:MAX_SKILLS]
        return [self._declared(each, SKILL) for each in told], problems

    def _read_files(self, wanted: PromptConfig, left_out: list[str]) -> Iterable[BootstrapFile]:
        if wanted.workspace is False:
            return
        if self._workspace is None:
            raise ProtocolError("config.prompt.workspace: the worker was started without one (--workspace)")
        inside = "" if wanted.workspace is True else wanted.workspace
        try:
            way = parts_of(inside) if inside not in ("", ".") else []
            with walked(self._workspace, way, inside or "."):
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


def reading_tool(parts: Parts, definitions: Mapping[str, JsonObject]) -> JsonObject:
    """The tool by which the model reads the skills that it is told of, and no others. Raises `ProtocolError`."""
    if (definition := definitions.get(READ_SKILL)) is None:
        raise ProtocolError(f"config.prompt.skills: the worker has no tool {READ_SKILL!r} to read them with")
    properties: JsonObject = dict(definition["properties"])
    properties["name"] = {**properties["name"], "enum": [skill.name for skill in parts.skills]}
    untrusted = any(skill.untrusted for skill in parts.skills)
    about = {"name": parts.reader, "properties": properties, "_activity": READ_SKILL}
    return {**definition, **about, **({"_untrusted": True} if untrusted else {})}
