"""Events lost on purpose: a loss within the replay buffer is repaired, a larger one is reported, never guessed."""

import pytest

from loadtest.soak.relay import LossyRelays

pytestmark = pytest.mark.any_version

PROMPT = "What is lost on the way is either asked for again or known to be lost, but never made up. " * 20
BUFFERED = 6


@pytest.fixture(scope="module")
def server(vllm):
    """A server whose publisher keeps few batches."""
    return vllm("--max-num-batched-tokens", "2048", buffer_steps=BUFFERED)


@pytest.fixture
def relayed(server, empty, front):
    """Return a function that starts a gateway behind a relay."""
    relays = []

    def begin(replay=True):
        relay = LossyRelays([server.kv_events["endpoint"]])
        relays.append(relay)
        source = server.kv_events | {"endpoint": relay.endpoints[0]}
        if not replay:
            del source["replay_endpoint"]
        gateway = front({"url": server.url, "kv_events": source})
        empty(server)
        gateway.settle()
        return gateway, relay

    yield begin
    for relay in relays:
        relay.close()


def send(gateway, text):
    """Send one request without a comparison; its events may be lost."""
    body = {"model": gateway.model, "prompt": text, "max_tokens": 1}
    return gateway.send("/v1/completions", body)


def lose(gateway, relay, texts):
    """Serve these requests while no batch reaches the gateway."""
    before = relay.dropped(0)
    relay.lose(0, 1_000)
    for text in texts:
        send(gateway, text)
    gateway.wait_for(lambda: relay.dropped(0) >= before + len(texts), "the loss")
    relay.lose(0, 0)


def events(gateway):
    return gateway.candidates()[0]["events"]


def texts(kind, count):
    return [f"{kind} {number} {PROMPT}" for number in range(count)]


def test_losses_within_the_replay_buffer_are_repaired(relayed):
    gateway, relay = relayed()
    assert gateway.residency() == "exact"
    for round_ in range(4):
        lost = texts(f"lost {round_}", 1 + round_ % 3)
        lose(gateway, relay, lost)
        send(gateway, f"noticed {round_} {PROMPT}")
        gateway.wait_for(lambda round_=round_: events(gateway)["gaps"] == round_ + 1, "the gap")
        gateway.wait_for(lambda: gateway.residency() == "exact", "the replay")
        for text in lost:
            assert gateway.complete(text).reported > 200
    gateway.exact(7)


def test_losses_beyond_the_replay_buffer_are_reported_and_partly_repaired(server, empty, relayed):
    gateway, relay = relayed()
    known, lost = texts("known", 3), texts("lost", BUFFERED + 4)
    for text in known:
        gateway.complete(text)
    lose(gateway, relay, lost)
    send(gateway, "noticed " + PROMPT)
    gateway.wait_for(lambda: gateway.residency() == "approximate", "word of the loss")
    (candidate,) = gateway.candidates()
    assert "could not be replayed" in candidate["reason"] or "missed" in candidate["reason"]

    # From here on the prediction is a lower bound: predicted blocks were announced or reported, so they are found.
    for text in [*lost, *known]:
        answer = send(gateway, text)
        assert answer.predicted is None or answer.predicted <= answer.reported
    gateway.settle()
    # After one request, a prompt is known exactly again.
    gateway.begin_comparison()
    for text in [*lost, *known, *texts("new", 3)]:
        gateway.complete(text)
    gateway.exact(len(lost) + len(known) + 3)
    assert gateway.residency() == "approximate"

    empty(server)
    gateway.wait_for(lambda: gateway.residency() == "exact", "an exact view after the reset")
    gateway.settle()
    for text in [*known, *known]:
        gateway.complete(text)
    gateway.exact(6)


def test_a_gap_without_a_replay_socket_is_a_loss(server, empty, relayed):
    gateway, relay = relayed(replay=False)
    lose(gateway, relay, texts("lost", 2))
    send(gateway, "noticed " + PROMPT)
    gateway.wait_for(lambda: gateway.residency() != "exact", "word of the loss")
    for text in texts("lost", 2):
        answer = send(gateway, text)
        assert answer.predicted is None or answer.predicted <= answer.reported
    empty(server)
    gateway.wait_for(lambda: gateway.residency() == "exact", "an exact view after the reset")
    gateway.settle()
    for text in [*texts("anew", 3), *texts("anew", 3)]:
        gateway.complete(text)
    gateway.exact(6)
