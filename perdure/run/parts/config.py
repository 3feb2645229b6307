"""`config.prompt`: what an agent's runs are told beside its context, and what one run is told in its place (R10.19)."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from perdure.errors import AgentError
from perdure.values.jsons import Json, JsonObject
from perdure.values.limits import MAX_BOOTSTRAP, MAX_INSTRUCTIONS
from perdure.values.problems import first_problem

FILES: Final = ("AGENTS.md", "SOUL.md", "TOOLS.md", "IDENTITY.md", "USER.md", "MEMORY.md")
"""Bootstrap files of a workspace, in the order in which they are told."""


class PromptConfig(BaseModel):
    """What of instructions, skills and a workspace a run is told. Nothing, unless it is asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str = Field(default="", max_length=MAX_INSTRUCTIONS)
    """Instructions that stand last among them; those of a run stand in the place of its agent's."""
    skills: bool | list[str] = False
    """`true`: all that the worker has; or these, by name."""
    workspace: bool | str = False
    """`true`: the files of the worker's workspace; or of this folder in it."""
    files: list[str] = Field(default=list(FILES), max_length=MAX_BOOTSTRAP)
    """Which, in this order; those that are not there are left out."""

    @field_validator("files")
    @classmethod
    def _names(cls, files: list[str]) -> list[str]:
        for name in files:
            if "/" in name or name in ("", ".", "..") or not name.isprintable() or len(name) > 200:
                raise ValueError(f"{name[:50]!r} is no file's name: a name without a folder")
        return list(dict.fromkeys(files))

    @property
    def wanted(self) -> bool:
        """Whether a worker has to be asked for anything."""
        return bool(self.text or self.skills or self.workspace)

    def changed(self, other: PromptConfig) -> PromptConfig:
        """With what the other one says."""
        said = {key: getattr(other, key) for key in other.model_fields_set}
        config: PromptConfig = self.model_copy(update=said)
        return config


def parse_prompt(raw: Json) -> PromptConfig:
    """A run's own changes to its agent's `config.prompt`. Raises `AgentError`."""
    try:
        config: PromptConfig = PromptConfig.model_validate(raw)
    except ValidationError as error:
        raise AgentError(f"prompt: {first_problem(error, model=PromptConfig)}") from None
    return config


def said(config: PromptConfig) -> JsonObject:
    """Only what was written of it."""
    plain: dict[str, Any] = config.model_dump(mode="json", exclude_unset=True)
    return plain
