"""A user's own workflows and activities beside Perdure's, in the worker of `perdure worker --workflows MODULE`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxRestrictions

from perdure.activities.registry import Registry
from perdure.agents.modules import import_setting, place_of
from perdure.errors import SettingsError
from perdure.hosting._worker_parts import PURE
from perdure.hosting.sdk_internals import Sandboxed, Unsandboxed, activity_name, workflow_name
from perdure.workflows.versioning import WORKFLOWS


@dataclass(frozen=True)
class UserWorkflows:
    """The workflows and the activities of a user's modules, by their names in Temporal."""

    workflows: dict[str, type] = field(default_factory=dict)
    activities: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def check_tools(self, registry: Registry) -> None:
        """Raise `SettingsError` for an activity with the name of a tool: calls of the tool would go to it."""
        for name in self.activities:
            if (tool := registry.get(name)) is not None and "_calls" not in tool.definition:
                raise SettingsError(f"workflows: an activity and a tool have the name {name!r}: rename one of them")


def load_workflows(modules: Iterable[str]) -> UserWorkflows:
    """Return the workflows, and the activities beside them, of these modules.

    Raise `SettingsError` for a module that cannot be imported or has no workflow, and for a name that is taken.
    """
    found = UserWorkflows()
    taken = {workflow_name(each): "Perdure" for each in WORKFLOWS}
    for name in modules:
        module = import_setting(name, "workflows")
        workflows = dict(_named(module, workflow_name))
        if not workflows:
            raise SettingsError(
                f"workflows: the module {name!r} has no workflow: decorate a class with @workflow.defn{place_of(module)}"
            )
        for each, cls in workflows.items():
            if found.workflows.setdefault(each, cls) is not cls or each in taken:
                other = taken.get(each) or found.workflows[each].__module__
                raise SettingsError(f"workflows: two workflows have the name {each!r}: in {name} and in {other}")
        for each, function in _named(module, activity_name):
            if (known := found.activities.setdefault(each, function)) is not function:
                raise SettingsError(
                    f"workflows: two activities have the name {each!r}: in {name} and in {known.__module__}"
                )
    return found


def _named(module: ModuleType, name_of: Callable[[Any], str | None]) -> Iterator[tuple[str, Any]]:
    """Yield workflows or activities with their names. A dynamic one is rejected: it would receive Perdure's calls."""
    for value in vars(module).values():
        if not callable(value) or str(getattr(value, "__module__", "")).startswith(("perdure.", "temporalio.")):
            continue
        name = name_of(value)
        if name is None:
            raise SettingsError(
                f"workflows: {module.__name__}.{getattr(value, '__name__', type(value).__name__)} is dynamic: give it a name"
            )
        if name:
            yield name, value


class MixedRunner(WorkflowRunner):
    """Runs a user's workflows in Temporal's sandbox, and Perdure's own without it."""

    def __init__(self, users: Iterable[str]) -> None:
        restrictions = SandboxRestrictions.default.with_passthrough_modules(*PURE)
        self._users = frozenset(users)
        self._inside, self._outside = Sandboxed(restrictions=restrictions), Unsandboxed()

    def prepare_workflow(self, defn: Any) -> None:
        """See `WorkflowRunner`."""
        self._of(defn).prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See `WorkflowRunner`."""
        return self._of(det.defn).create_instance(det)

    def set_worker_level_failure_exception_types(self, types: Any) -> None:
        """See `WorkflowRunner`."""
        for each in (self._inside, self._outside):
            each.set_worker_level_failure_exception_types(types)

    def _of(self, defn: Any) -> WorkflowRunner:
        return self._inside if defn.name in self._users else self._outside
