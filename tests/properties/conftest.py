"""The rigs of the gateway's own tests and of the conformance tables."""

import pytest

from tests.conformance.conftest import pytest_asyncio_loop_factories, recording, rig
from tests.properties.limits import memory_limit

__all__ = ["pytest_asyncio_loop_factories", "recording", "rig"]


@pytest.fixture(scope="module")
def bounded_memory():
    """Run a whole module of fuzz tests under `limits.memory_limit`."""
    with memory_limit():
        yield
