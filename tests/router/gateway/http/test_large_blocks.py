import platform
import subprocess
import sys

import pytest

FREES = """
from router.gateway.http.large_blocks import MAPPED_BYTES, map_large_blocks
from tests.support.memory import status_bytes

map_large_blocks()
bodies = [b"x" * MAPPED_BYTES for _ in range(400)]
last = b"x" * MAPPED_BYTES
before = status_bytes("VmRSS")
bodies.clear()
assert before - status_bytes("VmRSS") > 90_000_000
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator only")
def test_freed_bodies_are_returned():
    """In a process of its own: `map_large_blocks` changes the allocator for good."""
    subprocess.run([sys.executable, "-c", FREES], check=True)
