"""The pages of the site, for its generator (`make docs`): docs/ and what stands outside of it, with links that lead where these are now.

A link out of the site becomes the name of its file. One that leads nowhere ends it; anchors are for the generator, which is strict, to check.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
INTO: Final = ROOT / "build" / "pages"
"""`docs_dir` of mkdocs.yml."""
PAGES: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
"""A file at the top, and the page that it becomes."""
_LINK: Final = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")


def page(text: str, source: Path, place: str) -> str:
    """The page that stands at `place` in the site, and whose text was written for `source`."""

    def lead(found: re.Match[str]) -> str:
        target = (source.parent / found[2]).resolve()
        if target.is_relative_to(ROOT / "docs") and target.is_file():
            inside = target.relative_to(ROOT / "docs").as_posix()
        elif target.parent == ROOT and target.name in PAGES:
            inside = PAGES[target.name]
        elif target.is_relative_to(ROOT) and target.exists():
            name = target.relative_to(ROOT).as_posix()
            return f"`{name}`" if found[1].strip("`/").endswith(name) else f"{found[1]} (`{name}`)"
        else:
            raise SystemExit(f"{source.relative_to(ROOT)} leads to {found[2]}, which is not there")
        return f"[{found[1]}]({os.path.relpath(inside, Path(place).parent)}{found[3] or ''})"

    if place == "protocol.md":  # a rule is led to from wherever it is named
        text = re.sub(r"^- (R\d+\.\d+) ", r"- [](){#\1} **\1** ", text, flags=re.MULTILINE)
    blocks = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(block if block.startswith("```") else _ruled(_LINK.sub(lead, block)) for block in blocks)


def _ruled(text: str) -> str:
    """The rules that it names lead to the protocol, if they are built. Code has no escaped pipe: GitHub's tables need the escape,
    and the site would show it."""
    parts = re.split(r"(`[^`\n]*`)", text)
    return "".join(
        part.replace(r"\|", "|")
        if part.startswith("`")
        else re.sub(
            r"(?<![\[#*\w])R\d+\.\d+\b", lambda rule: f"[{rule[0]}][]" if rule[0] in _rules() else rule[0], part
        )
        for part in parts
    )


@functools.cache
def _rules() -> frozenset[str]:
    return frozenset(
        re.findall(r"^- (R\d+\.\d+) ", (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8"), re.MULTILINE)
    )


def main() -> None:
    """Lay all of it out anew."""
    shutil.rmtree(INTO, ignore_errors=True)
    shutil.copytree(ROOT / "docs", INTO)
    sources = {path.relative_to(ROOT / "docs").as_posix(): path for path in (ROOT / "docs").rglob("*.md")}
    for place, source in (sources | {place: ROOT / name for name, place in PAGES.items()}).items():
        (INTO / place).write_text(page(source.read_text(encoding="utf-8"), source, place), encoding="utf-8")


if __name__ == "__main__":
    main()
