import pytest

from loadtest.sim.handover import Network
from loadtest.sim.virtual_time import VirtualTime


@pytest.fixture
def time():
    return VirtualTime()


@pytest.fixture
def send(time):
    """Start a transfer, and note when it has arrived."""
    network, arrived_s = Network(time, 100.0, 0.5), {}

    def start(name, source, target, tokens, at_s=0.0):
        def begin():
            return network.start(source, target, tokens, lambda: arrived_s.update({name: time.now_s}))

        time.at(at_s, begin)

    return start, arrived_s, network


def test_a_transfer_takes_its_latency_and_its_tokens(time, send):
    start, arrived_s, _ = send
    start("one", "p", "d", 200)
    start("nothing to move", "p", "d", 0, at_s=5.0)
    time.run()
    assert arrived_s == {"one": pytest.approx(2.5), "nothing to move": pytest.approx(5.5)}


def test_transfers_share_the_card_that_they_have_in_common(time, send):
    start, arrived_s, _ = send
    start("first", "p", "d", 200)
    start("second", "p", "e", 200, at_s=1.0)  # the first has moved 100 by the time at which this one begins
    start("other cards", "q", "f", 100, at_s=1.0)
    time.run()
    assert arrived_s == pytest.approx({"other cards": 2.5, "first": 3.5, "second": 4.5})


def test_a_receiving_card_is_shared_too(time, send):
    start, arrived_s, _ = send
    start("first", "p", "d", 100)
    start("second", "q", "d", 100)
    time.run()
    assert arrived_s == pytest.approx({"first": 2.5, "second": 2.5})


@pytest.mark.parametrize("at_s", [0.1, 1.0], ids=["before it moves", "while it moves"])
def test_a_cancelled_transfer_does_not_arrive_and_leaves_the_card_to_others(time, send, at_s):
    start, arrived_s, network = send
    start("stays", "p", "d", 300)
    time.run(0.0)
    other = network.start("p", "d", 300, lambda: arrived_s.update({"cancelled": time.now_s}))
    time.at(at_s, network.cancel, other)
    time.run()
    shared_s = max(0.0, at_s - 0.5)
    assert arrived_s == {"stays": pytest.approx(3.5 + shared_s / 2)}
