"""The parts as a worker has read them, once, at the run's start: they go along with the run, so that an edit changes no running run (R12.5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pydantic import Field

from perdure.tools.tool import READ_SKILL
from perdure.values.limits import FILE_CHARACTERS, FILES_CHARACTERS
from perdure.values.sources import FILE, OTHERS, SKILL, Sources
from perdure.values.wire import Wire


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


def fitted(files: Iterable[BootstrapFile]) -> list[BootstrapFile]:
    """The files with as much of each as there is room for, the first first; of one for which none is left only its name."""
    left, found = FILES_CHARACTERS, list[BootstrapFile]()
    for file in files:
        text = file.text[: min(FILE_CHARACTERS, left)]
        left -= len(text)
        found.append(file.model_copy(update={"text": text}))
    return found


class Parts(Wire):
    """All of a run's."""

    text: str = ""
    skills: list[Skill] = Field(default_factory=list)
    reader: str = READ_SKILL
    """What the tool is called here that reads them."""
    files: list[BootstrapFile] = Field(default_factory=list)
    left_out: list[str] = Field(default_factory=list)
    """What there is and is not told, a line each: `perdure show ID --prompt` says it."""

    def with_files(self, texts: Mapping[str, str]) -> Parts:
        """With these files in the place of its own. Of a new one nobody can tell: it counts as written by others where any of those is."""
        known = {file.name: file for file in self.files}
        others = any(file.untrusted for file in self.files)
        files = [
            known[name]
            if name in known and known[name].text == text
            else BootstrapFile(
                name=name, text=text, characters=len(text), untrusted=known[name].untrusted if name in known else others
            )
            for name, text in texts.items()
            if text
        ]
        parts: Parts = self.model_copy(update={"files": fitted(files)})
        return parts

    def sources(self) -> Iterator[Sources]:
        """Where what is told comes from, part by part."""
        yield from (skill.sources for skill in self.skills)
        yield from (file.sources for file in self.files)
