import subprocess
import sys

import pytest

PROGRAM = """
import os, {module}
assert "OPENBLAS_NUM_THREADS" not in os.environ
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("Threads:")][0])
"""


@pytest.mark.parametrize("module", ["policies.view", "router.process.shared_memory.ledger", "router.placement.core"])
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_import_starts_no_thread(module, monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    program = PROGRAM.format(module=module)
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "1"
