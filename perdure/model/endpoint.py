"""A model server beside the default one, as a worker's settings name it (R9.1)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Endpoint(BaseModel):
    """An OpenAI-compatible server beside the default one. Its key is named, not written down."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str
    api_key_env: str | None = None
    """Environment variable with the key; `None`: the server wants none."""
