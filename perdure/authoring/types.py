"""Python types where an agent file has JSON Schemas: a schema for the model, and values of the type for the caller."""

from __future__ import annotations

from typing import Any, Generic

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from typing_extensions import TypeVar

from perdure.errors import AgentError, OutputError
from perdure.tools.functions import plain_schema
from perdure.values.jsons import Json, JsonObject, dumps
from perdure.values.problems import first_problem

T = TypeVar("T", default=Any)


class JsonType(Generic[T]):
    """What a value has to be: a JSON Schema as it was given, or that of a type, which then reads the values too.

    `wanted`: whatever pydantic's `TypeAdapter` takes, a JSON Schema (an object or a boolean), or `None` for any JSON. Raises
    `AgentError` for what is neither; `where` names it.
    """

    def __init__(self, wanted: Any, where: str) -> None:
        self._adapter: TypeAdapter[T] | None = None
        self.schema: JsonObject | bool = {}
        """`{}` takes any."""
        if isinstance(wanted, dict | bool):
            self.schema = wanted
        elif wanted is not None:
            try:
                self._adapter = TypeAdapter(wanted)
                self.schema = plain_schema(self._adapter.json_schema())
            except (PydanticSchemaGenerationError, PydanticUserError) as error:
                problem = str(error).splitlines()[0]
                raise AgentError(
                    f"{where} is neither a JSON Schema nor a type that JSON can be read as: {problem}"
                ) from None

    def read(self, value: Json) -> T:
        """The value as the type has it; without a type as it is. Raises `OutputError`."""
        if self._adapter is None:
            found: T = value
            return found
        try:
            return self._adapter.validate_json(dumps(value))
        except ValidationError as error:
            raise OutputError(f"the output is not of its type: {first_problem(error)}") from None
