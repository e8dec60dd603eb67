import pytest

from router.config.model import LimitsConfig
from router.gateway.http.client.input import LINGER_BYTES, ClientInput
from router.requests.body_buffer_limit import BodyBufferLimit

LIMIT_BYTES = 4_194_304


class Transport:
    def __init__(self):
        self.calls, self.closing = [], False

    def is_closing(self):
        return self.closing

    def pause_reading(self):
        self.calls.append("pause")

    def resume_reading(self):
        self.calls.append("resume")


@pytest.fixture
def bodies():
    return BodyBufferLimit(LimitsConfig(max_buffered_body_bytes=LIMIT_BYTES, max_body_bytes=1_048_576))


@pytest.fixture
def client_input(bodies):
    return ClientInput(bodies)


def test_reading_changes_only_if_it_must(client_input):
    transport = Transport()
    client_input.set_reading(False)
    assert not client_input.paused, "no transport yet"
    client_input.connected(transport)
    for reading in (True, False, False, True, True):
        client_input.set_reading(reading)
        assert client_input.paused is not reading
    assert transport.calls == ["pause", "resume"]
    transport.closing = True
    client_input.set_reading(False)
    assert transport.calls == ["pause", "resume"]


def test_bytes_ahead_count_as_body_bytes_until_they_are_given_back(client_input, bodies):
    assert client_input.take_ahead(1_000)
    assert (client_input.ahead_bytes, bodies.used_bytes) == (1_000, 1_000)
    client_input.give_back_ahead()
    client_input.give_back_ahead()
    assert (client_input.ahead_bytes, bodies.used_bytes) == (0, 0)
    assert client_input.take_ahead(10)
    client_input.lost()
    assert bodies.used_bytes == 0


def test_bytes_ahead_that_do_not_fit_are_not_counted(client_input, bodies):
    assert not client_input.take_ahead(LIMIT_BYTES + 1)
    assert (client_input.ahead_bytes, bodies.used_bytes) == (0, 0)


def test_discarded_bytes_are_limited_in_sum(client_input):
    assert not client_input.discard(LINGER_BYTES)
    assert client_input.discard(1)
