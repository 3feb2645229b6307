"""A model without a script, which calls each tool once, with values made from the tool's schema (R14.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from perdure.agents.agent import Agent
from perdure.runs.agent import Context
from perdure.testing._schema_values import Seeded, make
from perdure.testing.scripted_model import ChatRequest, Pace, ScriptedModel, Turn
from perdure.tools.tool import Tool, resolve_tools
from perdure.values.arguments import check_arguments_of
from perdure.values.json import Json, JsonObject

_ENDS_THE_RUN: Final = ("task_complete",)


class AutoModel(ScriptedModel):
    """A model without a script. In each run it calls every tool once in its first answer, and returns an output in
    the second; both match their schemas.

    `values`: by tool, fixed parameters; other parameters are made up if they are required. `skip`:
    tools that are not called. `output`: used in place of one made from the agent's schema. `seed`: the same seed makes
    the same values. The agent's delegates receive answers in the same way. Raises `CannotMakeError` for a
    schema for which it finds no value.

    ```python
    async def test_order() -> None:
        async with run_locally(shopper, model=AutoModel(values={"order": {"count": 3}})) as local:
            await local.run({"request": "Order three apples."})
    ```
    """

    @check_arguments_of
    def __init__(
        self,
        *,
        values: Mapping[str, Mapping[str, Any]] | None = None,
        skip: Iterable[str] = _ENDS_THE_RUN,
        output: Json = None,
        seed: int = 0,
        pace: Pace | None = None,
    ) -> None:
        super().__init__(self._turn, pace=pace)
        self._values = dict(values or {})
        self._skipped = set(skip)
        self._output = output
        self._chooser = Seeded(seed)
        self._definitions: Mapping[str, JsonObject] = {}
        self._delegates: Mapping[str, JsonObject] = {}
        self._called: dict[str, list[Tool]] = {}
        self._requests: Counter[str] = Counter()
        self._root: Agent[Any] | None = None

    def bind(self, agent: Agent[Any] | None, tools: Mapping[str, JsonObject]) -> None:
        """Set the agent and the definitions as `ScriptedModel.bind` does; calls get values for these definitions."""
        super().bind(agent, tools)
        self._root, self._definitions = agent, tools
        self._delegates = {} if agent is None else agent.delegates()

    def _turn(self, request: ChatRequest) -> Turn:
        agent = self._agent_of(request.run_id)
        dialect = None if agent is None else agent.parsed.config.dialect
        self._requests[request.run_id] += 1
        tools = [] if agent is None else self._tools(agent)
        if self._requests[request.run_id] == 1 and tools:
            self._called[request.run_id] = tools
            return Turn({"calls": [self._call(tool) for tool in tools], "output": None}, dialect=dialect)
        return Turn({"calls": [], "output": self._output_of(agent, request.run_id)}, dialect=dialect)

    def _agent_of(self, run_id: str) -> Agent[Any] | None:
        """Return the agent of a run: the root's, or that of the delegate whose call started the run."""
        above, _, call = run_id.rpartition("/")
        if above not in self._called:
            return self._root
        index = int(call.rpartition(".")[2])
        document = self._delegates.get(str(self._called[above][index].delegate))
        return None if document is None else Agent.of(document)

    def _tools(self, agent: Agent[Any]) -> list[Tool]:
        found = resolve_tools(Context(agent.parsed).tools, self._definitions)
        return [tool for tool in found.values() if tool.name not in self._skipped]

    def _call(self, tool: Tool) -> JsonObject:
        given = dict(self._values.get(tool.name, {}))
        made = make(_beside(given, tool.parameters), self._chooser, what=f"the parameters of {tool.name!r}")
        assert isinstance(made, dict)
        path = {} if tool.output_path else {"_outputPath": f'†state["{tool.name}"]'}
        latent = {"_output": make(tool.output or {}, self._chooser, what=f"{tool.name!r}")} if tool.latent else {}
        return {"_tool": tool.name, **made, **given, **latent, **path}

    def _output_of(self, agent: Agent[Any] | None, run_id: str) -> Json:
        if self._output is not None and "/" not in run_id:
            return self._output
        schema = True if agent is None else agent.parsed.output_schema
        made = make(schema, self._chooser, what="the output")
        return "done" if made is None else made


def _beside(given: JsonObject, schema: JsonObject) -> JsonObject:
    """Return the schema of the required parameters that are not in `given`."""
    if not given:
        return schema
    required = [name for name in schema.get("required", []) if name not in given]
    left = {name: each for name, each in schema.get("properties", {}).items() if name in required}
    return {**schema, "properties": left, "required": required}
