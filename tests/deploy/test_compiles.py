"""mypyc takes every module that `make compiled` gives it; the C that comes of it is compiled there and not here."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRANSLATE = (
    "import sys; from mypyc.build import mypycify; mypycify(sys.argv[2:], target_dir=sys.argv[1], opt_level='0')"
)


def matched(patterns):
    return {path.relative_to(ROOT) for pattern in patterns for path in ROOT.glob(pattern.removeprefix("/"))}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mypyc_takes_every_module_of_the_compiled_build(tmp_path):
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
    asked = hook["mypyc"]
    left_out = matched(pattern for pattern in asked["exclude"] if pattern.startswith("/"))
    modules = sorted(str(path) for path in matched(asked["include"]) - left_out if path.name != "__init__.py")
    assert len(modules) > 100
    command = [sys.executable, "-c", TRANSLATE, str(tmp_path), *asked["mypy-args"], "--cache-dir", str(tmp_path / "c")]
    done = subprocess.run([*command, *modules], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, "\n".join(line for line in done.stdout.splitlines() if "error:" in line) + done.stderr
