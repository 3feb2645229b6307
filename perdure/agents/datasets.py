"""Datasets of cases, read from files, folders and Python.

A file has the form of `pydantic-evals`, in JSON or YAML, or is a recorded run (`perdure record --to`). A dataset only
names its evaluators: the worker that scores has their code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from pydantic import Field, ValidationError

from perdure.agents.modules import import_named
from perdure.errors import SettingsError
from perdure.runs.evaluation import EvaluationCase
from perdure.values.json import Json, JsonObject, WireModel
from perdure.values.problems import first_problem

if TYPE_CHECKING:
    from pydantic_evals import Dataset

_SUFFIXES: Final = (".json", ".yaml", ".yml")
_FORM: Final = "a dataset of pydantic-evals ('cases', 'evaluators') or a run that 'perdure record --to' wrote"


@dataclass
class CaseSet:
    """The cases of a dataset, and the evaluators of all of them."""

    name: str
    cases: list[EvaluationCase] = field(default_factory=list)
    evaluators: list[Json] = field(default_factory=list)


class _CaseFile(WireModel):
    """A case in the form of a dataset file."""

    name: str = ""
    inputs: Json = None
    metadata: Json = None
    expected_output: Json = None
    evaluators: list[Json] = Field(default_factory=list)


def read_dataset(source: str | Path | Dataset[Any, Any, Any]) -> CaseSet:
    """Return the cases of a dataset.

    `source`: a file, a folder of files, `module:name` of a `Dataset`, or a `Dataset`. The evaluators of a file hold for its cases; those of a file
    without cases hold for the whole folder. Raises `SettingsError` for anything else.

    ```python
    cases = read_dataset("cases/").cases
    ```
    """
    if not isinstance(source, str | Path):
        return _of_document(_document_of(source), "the dataset")
    path = Path(source)
    if path.is_dir():
        return _read_folder(path)
    if path.is_file():
        return _read_file(path)
    module, colon, name = str(source).partition(":")
    if not colon or not name:
        raise SettingsError(f"{source}: the file or folder does not exist. Use a file, a folder, or MODULE:NAME")
    try:
        found = getattr(import_named(module), name)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"{source} cannot be loaded: {error}") from None
    return _of_document(_document_of(found), str(source))


def recorded_evaluators(run: JsonObject) -> list[Json]:
    """Return the evaluators of a recorded run: the same tools are called, values flow between the same tools, and the
    same calls need approval.

    `run`: the run in the form of a case, with `calls` and `edges`.
    """
    calls = [call for call in run.get("calls", []) if isinstance(call, dict)]
    tools = {call.get("id"): call.get("tool") for call in calls}
    made = [call["tool"] for call in calls if call.get("status") == "done"]
    flows = sorted({(tools.get(writer), tools.get(reader)) for writer, reader, *_ in run.get("edges", [])})
    pairs: list[Json] = [[writer, reader] for writer, reader in flows if writer and reader]
    asked = sorted({call["tool"] for call in calls if call.get("asked")})
    found: list[Json] = [{"ToolCorrectness": {"expected_tools": made}}]
    found += [{"Flows": {"expected": pairs}}] if pairs else []
    return [*found, {"Approvals": {"expected": asked}}]


def _document_of(dataset: Any) -> JsonObject:
    dump = getattr(dataset, "model_dump", None)
    if dump is None or not hasattr(dataset, "cases"):
        raise SettingsError(f"{type(dataset).__name__} is not a Dataset of pydantic-evals")
    document: JsonObject = dump(mode="json", by_alias=True, context={"use_short_form": True})
    return document


def _read_folder(folder: Path) -> CaseSet:
    found = CaseSet(folder.resolve().name)
    paths = [
        path for path in sorted(folder.iterdir()) if path.suffix in _SUFFIXES and not path.stem.endswith("_schema")
    ]
    for path in paths:
        one = _read_file(path)
        if not one.cases:
            found.evaluators += one.evaluators
        found.cases += [
            case.model_copy(update={"evaluators": [*case.evaluators, *one.evaluators]}) for case in one.cases
        ]
    if not paths:
        raise SettingsError(f"{folder} has no cases: a case's file name ends in {', '.join(_SUFFIXES)}")
    return found


def _read_file(path: Path) -> CaseSet:
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SettingsError(f"{path} cannot be read: {' '.join(str(error).split())[:300]}") from None
    if isinstance(document, dict) and isinstance(document.get("runs"), dict) and "agent" in document:
        return CaseSet(path.stem, [_of_record(document, path)])
    return _of_document(document, str(path), path.stem)


def _of_record(case: JsonObject, path: Path) -> EvaluationCase:
    run = case["runs"].get("")
    if not isinstance(run, dict):
        raise SettingsError(f"{path} is a recorded run without its result: record the run again")
    evaluators = case.get("evaluators")
    try:
        return EvaluationCase(
            name=path.stem,
            inputs=case.get("input"),
            has_input="input" in case,
            messages=case.get("messages", []),
            expected_output=run.get("output"),
            metadata={key: case[key] for key in ("sender", "context") if key in case},
            evaluators=recorded_evaluators(run) if evaluators is None else evaluators,
        )
    except ValidationError as error:
        raise SettingsError(f"{path}: {first_problem(error)}") from None


def _of_document(document: Json, source: str, name: str = "") -> CaseSet:
    written = document.get("cases") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(written, list):
        raise SettingsError(f"{source} has no cases. Expected: {_FORM}")
    evaluators = [] if document.get("evaluators") is None else document["evaluators"]
    if not isinstance(evaluators, list):
        raise SettingsError(f"{source}: 'evaluators' must be a list")
    cases = [*_cases(written, source)]
    return CaseSet(str(document.get("name") or name or "dataset"), cases, evaluators)


def _cases(written: list[Json], source: str) -> Iterable[EvaluationCase]:
    for place, each in enumerate(written, 1):
        names = {"expected_output", "expectedOutput"}
        if isinstance(each, dict):
            each = {**each, "name": each.get("name") or f"Case {place}"}
            each = {("expectedOutput" if key in names else key): value for key, value in each.items()}
        try:
            case = _CaseFile.model_validate(each)
        except ValidationError as error:
            raise SettingsError(f"{source}: cases[{place - 1}]: {first_problem(error, each)}") from None
        yield EvaluationCase(has_input=case.inputs is not None, **case.model_dump())
