"""The licences of everything that Perdure brings along: `python -m scripts.licences` lists them, and fails on a new kind."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

KINDS: Final = {
    "MIT": r"MIT( License)?|MIT-0|MIT-CMU",
    "BSD": r"BSD|0BSD|BSD-[23]-Clause|BSD License|3-Clause BSD License|BSD 3-Clause License\b.*",
    "Apache-2.0": r"Apache(-| License |  ?)2\.0|Apache Software License",
    "ISC": r"ISC|ISC License( \(ISCL\))?",
    "PSF-2.0": r"PSF-2\.0|Python Software Foundation License",
    "Zlib": r"Zlib",
    "CC0-1.0": r"CC0-1\.0",
    "MPL-2.0": r"MPL-2\.0|Mozilla Public License 2\.0 \(MPL 2\.0\)",  # certifi: binds its own files alone
}
"""What may come along, and how packages say it. All permit use in an MIT project; a copyleft licence is not among them."""


def closure() -> dict[str, Distribution]:
    """Every distribution that `perdure` with all its extras but those of developers needs, by name.

    Raises `PackageNotFoundError` for one that is not installed.
    """
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    groups = [
        project["dependencies"],
        *(
            v
            for k, v in project["optional-dependencies"].items()
            if k not in ("bench", "dev", "docs", "injection", "package")
        ),
    ]
    left = [Requirement(text) for group in groups for text in group]
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    while left:
        wanted = left.pop()
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if key in seen or key[0] == "perdure":
            continue
        seen.add(key)
        one = found[key[0]] = distribution(wanted.name)
        needs = map(Requirement, one.requires or ())
        extras = wanted.extras or {""}
        left += [need for need in needs if not need.marker or any(need.marker.evaluate({"extra": e}) for e in extras)]
    return dict(sorted(found.items()))


def licences(one: Distribution) -> list[str]:
    """What a distribution says of its licence: its expression's parts, else its classifiers, else its words' first line."""
    expression = one.metadata["License-Expression"]
    if expression:
        return [part for part in re.split(r"\s+(?:AND|OR)\s+|[()]", expression) if part]
    classifiers = [
        c.rsplit(" :: ", 1)[1] for c in one.metadata.get_all("Classifier") or () if c.startswith("License ::")
    ]
    if classifiers:
        return classifiers
    words = (one.metadata["License"] or "").strip()
    return [words.splitlines()[0] if words else "nothing"]


def strange(said: list[str]) -> list[str]:
    """What of it is of no kind that may come along."""
    return [text for text in said if not any(re.fullmatch(kind, text) for kind in KINDS.values())]


def main() -> None:
    """Print a line for each, and end with 1 if one is of a new kind, or is not installed."""
    try:
        found = {name: licences(one) for name, one in closure().items()}
    except PackageNotFoundError as error:
        sys.exit(f"not installed, so its licence is not known: {error}")
    for name, said in found.items():
        print(f"{name:40} {', '.join(said)}{'   <- a new kind' if strange(said) else ''}")
    sys.exit(1 if any(map(strange, found.values())) else 0)


if __name__ == "__main__":
    main()
