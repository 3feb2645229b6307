"""Two versions of an agent side by side: who takes which (R24.10)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import Agent
from perdure.agents.rollouts import Rollout, read_rollouts, write_rollouts
from perdure.errors import AgentError, PerdureError, SettingsError
from perdure.gateway.adapter import Agents

names = st.text(min_size=1, max_size=20)


@given(names, names, st.floats(0, 100), st.floats(0, 100), names)
def test_r24_10_a_larger_share_keeps_those_that_took_the_candidate(
    agent: str, key: str, one: float, other: float, tenant: str
) -> None:
    small, large = (Rollout(candidate="next", share=share) for share in sorted((one, other)))
    assert small.takes(agent, key) <= large.takes(agent, key)
    assert Rollout(candidate="next", share=100).takes(agent, key)
    assert not Rollout(candidate="next", share=0).takes(agent, key, tenant)
    assert Rollout(candidate="next", tenants=(tenant,)).takes(agent, key, tenant)


def test_r24_10_a_share_is_a_share_of_runs_and_one_of_sessions() -> None:
    rollout = Rollout(candidate="next", share=20)
    taken = [rollout.takes("shopper", f"run-{number}") for number in range(5000)]
    assert 900 < sum(taken) < 1100
    sessions = [{rollout.takes("shopper", f"session-{n}{run}") for run in ("", "/1", "/2/1.0")} for n in range(200)]
    assert all(len(each) == 1 for each in sessions)
    assert {True} in sessions


@settings(max_examples=25)
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20),
        st.builds(
            Rollout,
            candidate=st.just("\n"),
            share=st.integers(0, 100),
            tenants=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=3).map(tuple),
        ),
        max_size=3,
    )
)
def test_r24_10_what_is_written_is_read_again(tmp_path_factory: Any, rollouts: dict[str, Rollout]) -> None:
    folder = tmp_path_factory.mktemp("agents")
    write_rollouts(folder, rollouts)
    assert read_rollouts(folder) == rollouts


def document(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "context": [{"type": "text", "text": f"I am {name}."}], **more}


def folder_of(path: Path, rollouts: str, *documents: dict[str, Any]) -> Path:
    for each in documents:
        (path / f"{each['name']}.json").write_text(json.dumps(each), encoding="utf-8")
    (path / "rollouts.toml").write_text(rollouts, encoding="utf-8")
    return path


def test_r24_10_an_agent_of_a_folder_has_its_candidate_under_its_own_name(tmp_path: Path) -> None:
    text = '[shopper]\ncandidate = "shopper-2"\ntenants = ["acme"]\n'
    folder_of(tmp_path, text, document("shopper"), document("shopper-2", version="two"))
    agent = Agent.read_to_run("shopper", folder=tmp_path)
    stable, candidate = agent.version_for("r"), agent.version_for("r", tenant="acme")
    assert (stable.name, candidate.name, candidate.version) == ("shopper", "shopper", "two")
    assert len(stable.version) == 8
    assert agent.version == stable.version
    assert stable.document() | {"version": ""} == document("shopper", version="")
    assert candidate.document()["context"][0]["text"] == "I am shopper-2."
    # What has been chosen stays chosen.
    assert candidate.version_for("another").version == "two"
    assert stable.version_for("r", tenant="acme").version == stable.version
    assert Agent.read_to_run("shopper", folder=tmp_path, rollouts=False).version == ""
    assert Agent.read_to_run("shopper-2", folder=tmp_path).version_for("r").version == "two"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[shopper", "rollouts.toml is not TOML"),
        ('[shopper]\ncandidate = "shopper"\nshare = 5', "another agent file than shopper.json"),
        ('[shopper]\ncandidate = "next"\nshare = 101', r"\[shopper\] .*100"),
        ('[shopper]\ncandidate = "next"\nshares = 5', r"\[shopper\] .*shares"),
        ("[shopper]\nshare = 5", r"\[shopper\] .*candidate"),
        ('[shopper]\ncandidate = "none"\nshare = 5', "no agent '.*none.json'"),
        ('[shopper]\ncandidate = "same"\nshare = 5', 'the same version, "1"'),
        ("shopper = 1", r"\[shopper\]"),
    ],
)
def test_r24_10_an_invalid_rollout_is_one_line_and_the_gateway_keeps_the_agent(
    tmp_path: Path, text: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder_of(tmp_path, text, document("shopper", version="1"), document("same", version="1"), document("next"))
    with pytest.raises((SettingsError, AgentError), match=words) as refused:
        Agent.read_to_run("shopper", folder=tmp_path)
    assert "\n" not in str(refused.value)
    agents = Agents(tmp_path)
    assert agents.get("shopper").version_for("r", tenant="acme").version == "1"
    assert "rollout" in caplog.text
    # The gateway reads the file when it has changed.
    (tmp_path / "rollouts.toml").write_text('[shopper]\ncandidate = "next"\ntenants = ["acme"]\n', encoding="utf-8")
    assert agents.get("shopper").version_for("r", tenant="acme").version != "1"
    (tmp_path / "rollouts.toml").unlink()
    assert agents.get("shopper").version_for("r", tenant="acme").version == "1"


def test_r24_10_agents_in_python_have_candidates_too() -> None:
    one = Agent("shopper", instructions="Buy.")
    two = Agent("other", instructions="Buy well.")
    both = one.with_candidate(two, share=50)
    versions = {both.version_for(f"run-{number}").version for number in range(100)}
    assert len(versions) == 2
    assert {both.version_for(f"run-{n}").name for n in range(100)} == {"shopper"}
    with pytest.raises(AgentError, match="the same version"):
        one.with_candidate(Agent("shopper", instructions="Buy."))
    with pytest.raises(PerdureError, match="100"):
        one.with_candidate(two, share=120)
