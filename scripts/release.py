"""`make release`: is what stands in `dist/` fit to be released? Installs it as a stranger would, and runs the demo from there.

Checks that the changelog has a section of the version with its date, that the version's histories are those that were recorded for it,
and that the wheel, in an environment of its own with nothing of this checkout on its path, makes a project (`perdure init`) and plays the demo.
It publishes nothing: what to do then is its last lines.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
HISTORIES: Final = ROOT / "tests" / "histories"
DIGESTS: Final = "SHA256SUMS"
STEP: Final = 300.0
"""Seconds for each command."""


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each recorded history in a version's folder, by the file's name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.json"))}


def write_digests(folder: Path) -> None:
    """As `sha256sum` writes them, so that `sha256sum -c SHA256SUMS` checks them too."""
    lines = [f"{digest}  {name}\n" for name, digest in digests(folder).items()]
    (folder / DIGESTS).write_text("".join(lines), encoding="utf-8")


def changed_histories(folder: Path) -> list[str]:
    """What differs between a version's histories and their digests: names that were changed, added or taken away."""
    written = folder / DIGESTS
    if not written.is_file():
        return [DIGESTS]
    pairs = (line.split(maxsplit=1) for line in written.read_text(encoding="utf-8").splitlines())
    recorded, found = {name: digest for digest, name in pairs}, digests(folder)
    return sorted(name for name in recorded.keys() | found.keys() if recorded.get(name) != found.get(name))


def is_released(number: str, changelog: Path) -> bool:
    """Whether the changelog has a section of this version."""
    return re.search(rf"^## \[?{re.escape(number)}\b", changelog.read_text(encoding="utf-8"), re.MULTILINE) is not None


def problems(version: str, changelog: str, histories: Path) -> list[str]:
    """Why this version cannot be released."""
    found = []
    if re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE) is None:
        found.append(f'CHANGELOG.md has no section "## [{version}] - YYYY-MM-DD"')
    if changed := changed_histories(histories / version):
        found.append(
            f"tests/histories/{version} is not as it was recorded: {', '.join(changed)}; `make histories` records it "
            "anew for a version that is not released, and a released one's stay as they are"
        )
    if (histories / "unreleased").exists():
        found.append(
            f"tests/histories/unreleased is there: delete it after `make histories` has recorded all histories of {version}"
        )
    return found


def try_out(wheel: Path, folder: Path) -> None:
    """Install the wheel in an empty folder and use it. Raises `subprocess.CalledProcessError`."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TEMPORAL_", "PERDURE_"))
    }
    clean.pop("VIRTUAL_ENV", None)

    def run(*command: str | Path) -> None:
        print("$", *(Path(part).name if isinstance(part, Path) else part for part in command), flush=True)
        subprocess.run([str(part) for part in command], cwd=folder, env=clean, check=True, timeout=STEP)

    run(sys.executable, "-m", "venv", "env")
    python, perdure = folder / "env/bin/python", folder / "env/bin/perdure"
    quiet = ("-m", "pip", "install", "-q", "--disable-pip-version-check")
    run(python, *quiet, "-c", ROOT / "constraints.txt", f"{wheel}[embedded]")
    run(perdure, "--version")
    run(perdure, "init", "project")
    run(perdure, "demo", "--yes")


def main() -> int:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    wheels = list((ROOT / "dist").glob(f"perdure-{version}-*.whl"))
    found = problems(version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), HISTORIES)
    found += [] if len(wheels) == 1 else [f"dist/ has {len(wheels)} wheels of {version}: `make package` builds one"]
    if found:
        print(*found, sep="\n", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        try:
            try_out(wheels[0], Path(folder))
        except subprocess.SubprocessError as error:
            print(f"the wheel does not do what it should: {error}", file=sys.stderr)
            return 1
    print(f"{version} is fit to be released: git tag v{version}, then twine upload dist/*{version}*")
    return 0


if __name__ == "__main__":
    sys.exit(main())
