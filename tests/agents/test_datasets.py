"""Datasets as people write them (R22.3): files of pydantic-evals, recorded runs, folders, and Python."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import MaxModelRequests

from perdure.agents.datasets import read_dataset, recorded_evaluators
from perdure.errors import SettingsError
from perdure.evals import Flows, MaxCost, load_evaluators

RUN = {
    "status": "completed",
    "output": "done",
    "calls": [
        {"id": "1.0", "tool": "look", "params": {}, "status": "done"},
        {"id": "1.1", "tool": "refund", "params": {}, "status": "done", "asked": True},
        {"id": "1.2", "tool": "mail", "params": {}, "status": "skipped"},
    ],
    "edges": [["1.0", "1.1", "†state.order"]],
}
RECORD = {"form": 1, "agent": {"name": "a"}, "input": "17", "sender": "ann", "runs": {"": RUN}}
DATASET = Dataset[Any, Any, Any](
    name="refunds",
    cases=[
        Case(name="small", inputs={"euros": 5}, expected_output="paid", evaluators=[MaxCost(0.1)]),
        Case(inputs=None),
    ],
    evaluators=[Flows([["look", "refund"]]), MaxModelRequests(2)],
)


def test_a_dataset_in_python_and_in_files_is_the_same(tmp_path: Path) -> None:
    given = read_dataset(DATASET)
    for name in ("refunds.yaml", "refunds.json"):
        DATASET.to_file(tmp_path / name, custom_evaluator_types=[Flows, MaxCost])
        assert read_dataset(tmp_path / name) == given
    assert read_dataset("tests.agents.test_datasets:DATASET") == given
    assert [(case.name, case.inputs, case.has_input) for case in given.cases] == [
        ("small", {"euros": 5}, True),
        ("Case 2", None, False),
    ]
    assert load_evaluators([*given.cases[0].evaluators, *given.evaluators]) == [
        MaxCost(0.1),
        Flows([["look", "refund"]]),
        MaxModelRequests(2),
    ]


def test_a_recorded_run_is_a_case_with_evaluators_of_what_it_did(tmp_path: Path) -> None:
    (tmp_path / "order-17.json").write_text(json.dumps(RECORD))
    (case,) = read_dataset(tmp_path / "order-17.json").cases
    assert (case.name, case.inputs, case.has_input, case.expected_output) == ("order-17", "17", True, "done")
    assert case.metadata == {"sender": "ann"}
    assert case.evaluators == recorded_evaluators(RUN)
    assert case.evaluators == [
        {"ToolCorrectness": {"expected_tools": ["look", "refund"]}},
        {"Flows": {"expected": [["look", "refund"]]}},
        {"Approvals": {"expected": ["refund"]}},
    ]
    assert len(load_evaluators(case.evaluators)) == 3


@pytest.mark.parametrize(
    ("edited", "words"),
    [
        ({"messages": "Hi"}, 'must be a list, not "Hi" at $.messages'),
        ({"messages": ["Hi"]}, 'must be an object, not "Hi" at $.messages[0]'),
        ({"evaluators": 3}, "must be a list, not 3 at $.evaluators"),
    ],
)
def test_a_recorded_run_that_somebody_has_edited_is_refused_with_its_place(
    tmp_path: Path, edited: dict[str, Any], words: str
) -> None:
    (tmp_path / "order-17.json").write_text(json.dumps(RECORD | edited))
    with pytest.raises(SettingsError, match=re.escape(f"order-17.json: {words}")):
        read_dataset(tmp_path / "order-17.json")


def test_a_folder_has_all_cases_and_a_file_without_cases_holds_for_all(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(RECORD | {"evaluators": ["Mine"]}))
    (tmp_path / "more.yaml").write_text("cases: [{name: two, inputs: hi}]\nevaluators: [{MaxTokens: 5}]\n")
    (tmp_path / "all.yaml").write_text("cases: []\nevaluators: [{MaxCost: 1}]\n")
    (tmp_path / "more_schema.json").write_text("{}")
    found = read_dataset(str(tmp_path))
    assert [(case.name, case.evaluators) for case in found.cases] == [("two", [{"MaxTokens": 5}]), ("one", ["Mine"])]
    assert found.evaluators == [{"MaxCost": 1}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "has no cases. Expected: a dataset of pydantic-evals"),
        ("cases: [{inputs: 1, wrong: 2}]", r"cases\[0\]: .wrong. is not a known key"),
        ("cases: [1]", r"cases\[0\]"),
        ("cases: [", "cannot be read"),
        ("cases: []\nevaluators: {}", "'evaluators' must be a list"),
    ],
)
def test_a_file_that_is_no_dataset_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(SettingsError, match=words):
        read_dataset(tmp_path / "bad.yaml")


def test_a_source_that_is_nothing_is_named(tmp_path: Path) -> None:
    for source, words in (
        ("nowhere", "the file or folder does not exist"),
        ("tests.agents.test_datasets:RUN", "dict is not a Dataset"),
        ("tests.agents.test_datasets:GONE", "cannot be loaded"),
        (str(tmp_path), "has no cases: a case's file name ends in .json, .yaml, .yml"),
    ):
        with pytest.raises(SettingsError, match=words):
            read_dataset(source)
