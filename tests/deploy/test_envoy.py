"""The configurations of Envoy, as Envoy itself reads them."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVOY = ROOT / ".venv-envoy" / "bin" / "envoy"
FILES = sorted((ROOT / "deploy" / "envoy").glob("*.yaml"))

pytestmark = pytest.mark.skipif(not ENVOY.exists(), reason="Envoy is not installed: run `make envoy-env`")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_envoy_accepts_the_file(file):
    command = [ENVOY, "--mode", "validate", "--use-dynamic-base-id", "-c", file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


def test_a_misspelt_field_is_found(tmp_path):
    file = tmp_path / "envoy.yaml"
    file.write_text(FILES[0].read_text().replace("failure_mode_allow", "failure_mode_alow"))
    command = [ENVOY, "--mode", "validate", "--use-dynamic-base-id", "-c", file]
    assert subprocess.run(command, capture_output=True, timeout=30, check=False).returncode != 0
