"""The rigs of the gateway's own tests and of the conformance tables."""

import pytest

from tests.conformance.conftest import kit, pytest_asyncio_loop_factories, recording, rig
from tests.properties.limits import memory_limit

__all__ = ["kit", "pytest_asyncio_loop_factories", "recording", "rig"]


@pytest.fixture(scope="module")
def bounded_memory():
    """For a module of fuzz tests: `limits.memory_limit` around all of it."""
    with memory_limit():
        yield
