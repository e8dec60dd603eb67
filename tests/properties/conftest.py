import pytest

from tests.properties.limits import memory_limit


@pytest.fixture(scope="module")
def bounded_memory():
    """Run a whole module of fuzz tests under `limits.memory_limit`."""
    with memory_limit():
        yield
