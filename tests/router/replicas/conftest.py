import pytest

from router.replicas import messages
from router.replicas.messages import FleetMessage, StateVersion
from tests.support.redis_server import redis_server


@pytest.fixture(scope="module")
def redis():
    with redis_server() as server:
        yield server


def encoded(replica="x", seq=1, *, whole=False, rows=None, placed=None, use=None):
    """Return a message of a replica's first process with some parts; the others are empty."""
    parts = [messages.NOTHING if part is None else part for part in (rows, placed, use)]
    state = StateVersion()
    return messages.encode(FleetMessage(replica, 0, 1.0, seq, whole, parts[0], parts[1], state, parts[2]))
