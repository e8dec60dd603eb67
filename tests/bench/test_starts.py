"""Every bench still starts: they are run by hand, and rarely."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("bench", sorted(path.name for path in Path(__file__).parent.glob("bench_*.py")))
def test_it_says_what_it_measures(bench):
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(bench)), "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "usage: " in done.stdout
