"""Check that every file has the addresses of `pyproject.toml`: `python -m scripts.addresses [--write | --published]`.

`[project.urls]` and `[tool.perdure] security` are the one place in which whoever publishes fills them in. `--write` then copies
them into the other files; `--published` refuses the addresses of the example.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
EXAMPLE: Final = ".example"
"""The end of a host that nobody has; whoever publishes has another."""
PLACES: Final = (
    ("perdure/cli/_help.py", r'^SITE: Final = "([^"]+)"', "Documentation"),
    ("SECURITY.md", r"<([^<>@\s]+@[^<>\s]+)>", "security"),
    (".github/ISSUE_TEMPLATE/config.yml", r"- name: Documentation\n    url: (\S+)", "Documentation"),
    (".github/ISSUE_TEMPLATE/config.yml", r"- name: A fault of security\n    url: (\S+)", "Security"),
    ("CITATION.cff", r'^url: "([^"]+)"', "Documentation"),
    ("CITATION.cff", r'^repository-code: "([^"]+)"', "Source"),
)
"""A file, the place in it, and the name of the address that stands there."""


def addresses(root: Path = ROOT) -> dict[str, str]:
    """Return the addresses by name."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return {**project["project"]["urls"], "security": project["tool"]["perdure"]["security"]}


def problems(root: Path = ROOT, *, published: bool = False) -> list[str]:
    """Return one line for each place with another address, and if `published` for each that is an example."""
    wanted = addresses(root)
    found = []
    for name, pattern, which in PLACES:
        there = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        if there is None or there[1] != wanted[which]:
            found.append(f"{name}: {there[1] if there else 'nothing'} must be {wanted[which]}; run with --write")
    examples = [
        f"pyproject.toml: {which} is {value}: fill it in" for which, value in wanted.items() if EXAMPLE in value
    ]
    return [*found, *(examples if published else [])]


def write(root: Path = ROOT) -> None:
    """Copy the addresses into every place."""
    wanted = addresses(root)
    for name, pattern, which in PLACES:
        path = root / name
        text = path.read_text(encoding="utf-8")
        there = re.search(pattern, text, re.MULTILINE)
        if there is None:
            raise SystemExit(f"{name}: no place for the address {which}")
        path.write_text(text[: there.start(1)] + wanted[which] + text[there.end(1) :], encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Print every problem; return 1 if there is one."""
    if "--write" in arguments:
        write()
    found = problems(published="--published" in arguments)
    print("\n".join(found), end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
