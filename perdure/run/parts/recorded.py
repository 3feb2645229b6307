"""The parts as a worker has read them, once, at the run's start: they go along with the run, so that an edit changes no running run (R12.5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pydantic import Field

from perdure.values.sources import FILE, OTHERS, SKILL, Sources
from perdure.values.wire import Wire

READ_SKILL: Final = "read_skill"
"""The tool by which a model reads a skill; under this key the worker has its code."""


class Skill(Wire):
    """One that the model is told of; it reads the rest when it needs it."""

    name: str
    description: str
    untrusted: bool = False
    """Whether the worker says that others wrote it (R15.2)."""

    @property
    def sources(self) -> Sources:
        return frozenset({f"{OTHERS if self.untrusted else ''}{SKILL}{self.name}"})


class BootstrapFile(Wire):
    """A file of the workspace, as far as it is told."""

    name: str
    text: str
    characters: int
    """Of the whole file."""
    untrusted: bool = False

    @property
    def sources(self) -> Sources:
        return frozenset({f"{OTHERS if self.untrusted else ''}{FILE}{self.name}"})


class Parts(Wire):
    """All of a run's."""

    text: str = ""
    skills: list[Skill] = Field(default_factory=list)
    reader: str = READ_SKILL
    """What the tool is called here that reads them."""
    files: list[BootstrapFile] = Field(default_factory=list)
    left_out: list[str] = Field(default_factory=list)
    """What there is and is not told, a line each: `perdure show ID --prompt` says it."""

    def sources(self) -> Iterator[Sources]:
        """Where what is told comes from, part by part."""
        yield from (skill.sources for skill in self.skills)
        yield from (file.sources for file in self.files)
