import pytest

from tests.support.redis_server import redis_server


@pytest.fixture(scope="module")
def redis():
    with redis_server() as server:
        yield server
