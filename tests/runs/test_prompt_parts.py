"""Skills and bootstrap files as they are read and told: bounded, whatever stands in them (R10.19)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.prompt_files import read_skill_file, skill_tools, skills_in
from perdure.errors import AgentError, ToolError
from perdure.models.requests import PartView
from perdure.runs.agent import PromptConfig, parse_prompt
from perdure.runs.prompt_parts import (
    BootstrapFile,
    PromptParts,
    Skill,
    common_prefix_length,
    costs,
    file_text,
    fit_files,
    skills_text,
)
from perdure.tools.decorator import tool_function
from perdure.values.limits import FILES_CHARACTERS, MAX_SKILLS, SKILLS_CHARACTERS, TIGHT_PART


def no(_: Any) -> bool:
    return False


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Do it.", "does not begin with front matter"),
        ("---\nname: a", "does not begin with front matter"),
        ("---\nname: [\n---\n", "line 3: its front matter is not YAML"),
        ("---\nname: a\n---\n", "needs 'name' and 'description'"),
        ("---\nname: a\ndescription: ''\n---\n", "needs 'name' and 'description'"),
        ("---\n- a\n---\n", "needs 'name' and 'description'"),
        ("---\nname: b\ndescription: x\n---\n", "its name 'b' must be its folder's name"),
        (f"---\nname: a\ndescription: {'x' * 1025}\n---\n", "its description has 1,025 characters; the limit is 1,024"),
    ],
)
def test_what_is_wrong_with_a_skill_is_one_line(text: str, words: str) -> None:
    found = read_skill_file("a", text)
    assert isinstance(found, str)
    assert words in found
    assert "\n" not in found


def test_a_skill_as_the_format_has_it() -> None:
    more = "license: MIT\nmetadata:\n  author: us\nallowed-tools: Bash(git:*)"
    found = read_skill_file("a-b", f"---\r\nname: a-b\r\ndescription: |\r\n  One:\r\n  two\r\n{more}\r\n---\r\nBody")
    assert found == Skill(name="a-b", description="One:\ntwo")
    assert skills_text(PromptParts(skills=[Skill(name="a-b", description="One:\ntwo")]), no).endswith("- a-b: One: two")


BOMB = "a: &a {k: v}\n" + "".join(
    f"{after}: &{after} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "hostile",
    [BOMB, "x: !!int ''", "x: !!bool no-bool", "x: !!timestamp never", "x: !!float ''", "? [a]\n: b", "x: &x [*x]"],
    ids=["parts merged into parts", "int", "bool", "timestamp", "float", "a list as a key", "a list in itself"],
)
def test_keys_that_are_not_looked_at_do_no_harm(hostile: str) -> None:
    found = read_skill_file("a", f"---\nname: a\ndescription: d\n{hostile}\n---\nBody")
    assert found == Skill(name="a", description="d")
    assert isinstance(read_skill_file("a", f"---\nname: !!int ''\ndescription: !!bool no\n{hostile}\n---\n"), str)


@given(st.text(), st.text())
def test_no_text_of_a_skill_raises(front: str, body: str) -> None:
    for text in (f"---\n{front}\n---\n{body}", front):
        assert isinstance(read_skill_file("a", text), Skill | str)


def test_links_and_paths_do_not_lead_out(tmp_path: Path) -> None:
    skills = tmp_path / "skills"
    for name in ("one", "two"):
        (skills / name).mkdir(parents=True)
        (skills / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: d\n---\n{name}", encoding="utf-8")
    (tmp_path / "key").write_text("secret", encoding="utf-8")
    (skills / "linked").symlink_to(skills / "one")
    (skills / "one" / "key").symlink_to(tmp_path / "key")
    (skills / "one" / "up").symlink_to(tmp_path)
    (skills / "three").mkdir()
    (skills / "three" / "SKILL.md").symlink_to(tmp_path / "key")
    found = list(skills_in(skills))
    assert [each.name for each in found if isinstance(each, Skill)] == ["one", "two"]
    assert [each for each in found if isinstance(each, str)] == [
        "skill 'three': three/SKILL.md: Too many levels of symbolic links; links are not followed"
    ]
    function = tool_function(skill_tools(skills)[0])
    assert function is not None
    read: Any = function.function
    assert read("one") == "one"
    for name, path in [
        ("one", "key"), ("one", "up/key"), ("one", "../two/SKILL.md"), ("one", "/etc/passwd"), ("../skills/one", "SKILL.md"),
        ("linked", "SKILL.md"), ("three", "SKILL.md"), ("one", ""), ("one", "."), ("", "key"), ("one", "a\0b"),
    ]:  # fmt: skip
        with pytest.raises(ToolError):
            read(name, path)


@given(st.lists(st.integers(0, 30_000), max_size=12))
def test_r10_19_all_files_together_are_bounded_and_a_cut_shows(sizes: list[int]) -> None:
    files = [BootstrapFile(name=f"F{n}.md", text="x" * size, characters=size) for n, size in enumerate(sizes)]
    told = fit_files(files)
    assert sum(len(file.text) for file in told) <= FILES_CHARACTERS
    for file in told:
        text = file_text(file, no)
        assert ("… [cut: " in text) == (len(file.text) < file.characters)
        assert len(file_text(file, no, tight=True)) <= TIGHT_PART + 100


@given(st.lists(st.integers(1, 1024), min_size=1, max_size=MAX_SKILLS))
def test_r10_19_so_is_the_list_of_skills(sizes: list[int]) -> None:
    skills = [Skill(name=f"skill-{n}", description="x" * size) for n, size in enumerate(sizes)]
    text = skills_text(PromptParts(skills=skills), no)
    assert len(text) < SKILLS_CHARACTERS + 60 * len(skills) + 500
    assert all(f"- {skill.name}: x" in text for skill in skills)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ({"skils": True}, "skils"),
        ({"files": ["a/b"]}, "'a/b' is not a file name"),
        ({"files": [".."]}, "'..' is not a file name"),
        ({"text": "x" * 20_001}, "text"),
        ("all", "prompt: "),
        ({"skills": "pdf"}, "skills"),
    ],
)
def test_a_prompt_that_is_none_is_refused_in_one_line(prompt: Any, words: str) -> None:
    with pytest.raises(AgentError) as caught:
        parse_prompt(prompt)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_says_only_what_is_another() -> None:
    agents = PromptConfig(text="a", skills=True, files=["A.md"])
    assert agents.changed(parse_prompt({"text": ""})) == PromptConfig(text="", skills=True, files=["A.md"])


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=10), st.integers(1, 100_000))
def test_r10_19_the_parts_share_what_the_server_has_counted(sizes: list[int], counted: int) -> None:
    parts = [PartView(part=str(n), characters=size) for n, size in enumerate(sizes)]
    shared = costs(parts, counted)
    assert (shared.total, shared.counted) == (counted, True)
    assert abs(sum(shared.tokens) - counted) <= len(parts)
    thought = costs(parts, 0)
    assert thought.counted is False
    assert thought.total >= sum(sizes) // 4


def test_how_far_two_prompts_begin_alike() -> None:
    one = [{"role": "system", "content": "abc"}, {"role": "user", "content": "hello"}]
    assert common_prefix_length(one, one) == 8
    assert common_prefix_length(one, [one[0], {"role": "user", "content": "help"}]) == 6
    assert common_prefix_length(one, [one[0], {"role": "assistant", "content": "hello"}]) == 3
    assert common_prefix_length(one, []) == 0
