import pytest

from loadtest.fleet.redis import redis_server


@pytest.fixture(scope="module")
def redis():
    with redis_server() as server:
        yield server
