"""The pages of the site, for its generator (`make docs`): docs/ and what stands outside of it, with links that lead where these are now.

A link out of the site becomes the name of its file. One that leads nowhere ends it; anchors are for the generator, which is strict, to check.
"""

from __future__ import annotations

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

    blocks = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(block if block.startswith("```") else _LINK.sub(lead, block) for block in blocks)


def main() -> None:
    """Lay all of it out anew."""
    shutil.rmtree(INTO, ignore_errors=True)
    shutil.copytree(ROOT / "docs", INTO)
    sources = {path.relative_to(ROOT / "docs").as_posix(): path for path in (ROOT / "docs").rglob("*.md")}
    for place, source in (sources | {place: ROOT / name for name, place in PAGES.items()}).items():
        (INTO / place).write_text(page(source.read_text(encoding="utf-8"), source, place), encoding="utf-8")


if __name__ == "__main__":
    main()
