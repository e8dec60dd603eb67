"""Generate the messages of router/picker/protocol: ``python -m docs.build.protocol [DIRECTORY]``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROTOCOL = Path("router/picker/protocol")


def generate(out: Path) -> None:
    """Write the modules and their stubs under `out`, by their paths in the checkout.

    Raises:
        subprocess.CalledProcessError: a .proto file has a mistake, or grpcio-tools is not installed.
    """
    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / PROTOCOL).glob("*.proto"))
    to = [f"--python_out={out}", f"--pyi_out={out}"]
    # a process of its own: protoc finds the .proto files of protobuf only when it is started so
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I.", *to, *sources], cwd=ROOT, check=True)


if __name__ == "__main__":
    generate(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT).resolve())
