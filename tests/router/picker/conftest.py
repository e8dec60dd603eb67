import pytest

from backends.worker import RankCache, ServedModel, WorkerFacts


@pytest.fixture
def two_ranks():
    """What a worker with two data-parallel ranks reports."""
    cache = RankCache(16, 1_000, True)
    return WorkerFacts(version="0.33.0", models=(ServedModel("m"),), caches={0: cache, 1: cache})
