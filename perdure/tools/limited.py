"""What is limited to so many a minute, over all workers: it has a task queue of its own, whose rate the server keeps."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import Field

from perdure.values.wire import Wire


class Limited(Wire):
    """The models, and the activities of tools, that workers hold to a rate."""

    models: list[str] = Field(default_factory=list)
    tools: list[str] = Field(default_factory=list)
    runs: bool = False
    """Whether runs of sessions wait for a worker to have room (R10.3)."""

    def of_model(self, queue: str, model: str) -> str | None:
        """Where Requests of the model go; `None`: where all others of the queue go."""
        return model_queue(queue, model) if model in self.models else None

    def of_tool(self, queue: str, activity: str) -> str | None:
        """Where calls of the tool's code go; `None`: where all others of the queue go."""
        return tool_queue(queue, activity) if activity in self.tools else None


def limited(models: Collection[str], tools: Collection[str], *, runs: bool = False) -> Limited:
    return Limited(models=sorted(models), tools=sorted(tools), runs=runs)


def runs_queue(queue: str) -> str:
    """Where turns of sessions' runs are given."""
    return f"{queue}/runs"


def model_queue(queue: str, model: str) -> str:
    return f"{queue}/model/{model}"


def tool_queue(queue: str, activity: str) -> str:
    return f"{queue}/tool/{activity}"
