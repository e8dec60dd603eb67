import subprocess
import sys
from pathlib import Path

import pytest

import loadtest

ROOT = Path(loadtest.__file__).parent
MODULES = [f"loadtest.bench.parts.{path.stem}" for path in sorted((ROOT / "bench" / "parts").glob("[!_]*.py"))]


@pytest.mark.parametrize("module", MODULES)
def test_the_module_prints_its_usage(module):
    done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage: " in done.stdout
