"""The worker's registry: tools, hooks and routes found in modules (R12.5, R10.16, R10.17, R19.5)."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from perdure.activities.hooks import HookRegistry
from perdure.agents.agent import Agent
from perdure.agents.frameworks import is_framework_agent
from perdure.agents.modules import import_named, missing_module, place_of
from perdure.errors import HookDefinitionError, ToolDefinitionError
from perdure.hooks.decorator import hook_functions
from perdure.runs.delegates import tools_of
from perdure.runs.notifications import notification_routes_of
from perdure.runs.routes import RouteFunctions
from perdure.sessions.replies import routes_of
from perdure.tools.decorator import ToolFunction, tool_function
from perdure.tools.definitions import definition_name
from perdure.tools.engine import ENGINE_TOOLS
from perdure.tools.frameworks import framework_tools
from perdure.values.json import JsonObject
from perdure.values.problems import none_of


class Registry:
    """Tools by name. Two different functions of one name are rejected: the choice between them would be arbitrary."""

    def __init__(self, functions: Iterable[ToolFunction] = ()) -> None:
        self._functions: dict[str, ToolFunction] = {}
        self._owned: dict[str, list[str]] = {}
        self.hooks = HookRegistry()
        """The hooks of the same modules."""
        self.routes = RouteFunctions()
        """The modules' functions that deliver replies."""
        self.notification_routes = RouteFunctions()
        """The modules' functions that deliver notifications."""
        self.agents: list[Agent] = []
        """The modules' agents."""
        self.evaluators: list[type[Any]] = []
        """The modules' evaluator classes of `pydantic-evals` (R22.3)."""
        for function in functions:
            self.add(function)

    def add(self, function: ToolFunction) -> None:
        """Add a tool. Raise `ToolDefinitionError` when another function already has the name."""
        known = self._functions.setdefault(function.name, function)
        if known.function != function.function:
            raise ToolDefinitionError(
                f"two tools have the name {function.name!r}: in {known.function.__module__} and {function.function.__module__}"
            )

    def add_missing(self, functions: Iterable[ToolFunction]) -> None:
        """Add tools that come with Perdure: a user's own tool of the same name has precedence."""
        for function in functions:
            self._functions.setdefault(function.name, function)

    def replace(self, owner: str, functions: Iterable[ToolFunction]) -> list[str]:
        """Replace the tools of an owner, such as an MCP server. Return one line for each name that another tool has."""
        for name in self._owned.pop(owner, []):
            del self._functions[name]
        owned, problems = self._owned.setdefault(owner, []), []
        for function in functions:
            if function.name in self._functions:
                problems.append(f"two tools have the name {function.name!r}; the tool of {owner} is not offered")
                continue
            self._functions[function.name] = function
            owned.append(function.name)
        return problems

    def get(self, name: str) -> ToolFunction | None:
        return self._functions.get(name)

    def definitions(self) -> dict[str, JsonObject]:
        """Return every tool's definition by name: the engine's own and the worker's. A worker's tool of the same name wins."""
        return {**ENGINE_TOOLS, **{name: function.definition for name, function in self._functions.items()}}

    def mistaken_hooks(self, tools: Iterable[str | JsonObject]) -> list[str]:
        """Return a line for each tool that a hook is limited to and that is not known: such a hook is never called.

        `tools`: further known tools, by name or by definition, such as those that only agent files have.
        """
        documents = [each for agent in self.agents for each in (agent.document(), *agent.delegates().values())]
        named = [*tools, *(tool for document in documents for tool in tools_of(document))]
        own = {str(definition_name(tool)) if isinstance(tool, dict) else tool for tool in named}
        known = sorted(own.union(self.definitions()))
        return [
            f"hook {hook.ref.name}: {none_of(name, 'tool', known)}"
            for hook in self.hooks
            for name in hook.ref.tools or ()
            if name not in known
        ]

    def __iter__(self) -> Iterator[ToolFunction]:
        return iter(self._functions.values())

    def __len__(self) -> int:
        return len(self._functions)


def load_tools(modules: Iterable[str]) -> Registry:
    """Return the tools, hooks and routes of the named modules; the current directory is importable.

    Raises `ToolDefinitionError` for a module that does not exist, cannot be imported, or holds none.
    """
    registry = Registry()
    for name in modules:
        module = _import(name)
        agents = _agents_of(module)
        # An agent's tools come first: they read the context as the type that the agent names.
        found = [*(each for agent in agents for each in agent.functions), *_tools_of(module)]
        hooks = [each for value in vars(module).values() for each in hook_functions(value)]
        hooks += [each for agent in agents for each in agent.hooks]
        routes = [each for value in vars(module).values() for each in routes_of(value)]
        informing = [each for value in vars(module).values() for each in notification_routes_of(value)]
        scoring = _evaluators_of(module)
        registry.agents += agents
        if not found and not hooks and not routes and not informing and not scoring:
            raise ToolDefinitionError(
                f"the module {name!r} has no tools: decorate functions with @tool{place_of(module)}"
            )
        registry.evaluators += scoring
        for route in routes:
            registry.routes.add(route)
        for route in informing:
            registry.notification_routes.add(route)
        for function in found:
            registry.add(function)
        for hook in hooks:
            registry.hooks.add(hook)
    return registry


def _import(name: str) -> ModuleType:
    try:
        return import_named(name)
    except ModuleNotFoundError as error:
        raise ToolDefinitionError(f"no tools can be loaded: {missing_module(name, error)}") from None
    except (ToolDefinitionError, HookDefinitionError):
        raise
    except Exception as error:
        words = f"the module {name!r} cannot be imported: {type(error).__name__}: {error}{_line_of(error)}"
        raise ToolDefinitionError(words) from error


def _line_of(error: Exception) -> str:
    """Return the file and the line at which an import failed. A syntax error names them itself."""
    if isinstance(error, SyntaxError):
        return ""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if "importlib" not in each.filename]
    inner = frames[-1] if frames else None
    return "" if inner is None or inner.filename == __file__ else f" ({Path(inner.filename).name}, line {inner.lineno})"


def _tools_of(module: ModuleType) -> Iterator[ToolFunction]:
    for value in vars(module).values():
        function = tool_function(value)
        yield from framework_tools(value) if function is None else [function]


def _evaluators_of(module: ModuleType) -> list[type[Any]]:
    """Return the classes of evaluators that a module defines. A module that has not imported `pydantic-evals` has none."""
    library = sys.modules.get("pydantic_evals.evaluators")
    base = None if library is None else library.Evaluator
    return [
        value
        for value in vars(module).values()
        if base is not None
        and isinstance(value, type)
        and issubclass(value, base)
        and value.__module__ == module.__name__
    ]


def _agents_of(module: ModuleType) -> list[Agent]:
    """Return the agents of a module: Perdure's, and those of other frameworks from which no Perdure agent was made."""
    own = [value for value in vars(module).values() if isinstance(value, Agent)]
    read = [source for agent in own for source in agent.sources]
    for name, value in vars(module).items():
        if is_framework_agent(value) and all(value is not each for each in read):
            own.append(Agent.of(value, name=name))
            read += own[-1].sources
    return own
