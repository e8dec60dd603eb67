"""A gateway restarts in front of a warm worker. The tests check its view at once, and how soon the view is complete.

To measure how soon the view is complete, requests are streams without usage, like most streams, so that only events
teach the view. The tokens actually found come from vLLM's counter.
"""

import time

import httpx
import pytest

PIGGYBACK = {"WARMROUTE_RESIDENCY__RELEARN": "piggyback"}
CONVERSATIONS = 6
SYSTEM = {"role": "system", "content": "You keep the light on the northern cape, and answer every ship. " * 10}
SMALL_BUFFER = 2
"""Batches kept for replay: no more than the last request produced."""
HITS = "vllm:prefix_cache_hits_total"


def first_turns(name, conversations=CONVERSATIONS):
    text = "Ship {number} of {name} asks for the depth, the wind and the current off the cape. " * 8
    return [
        [SYSTEM, {"role": "user", "content": text.format(number=number, name=name)}] for number in range(conversations)
    ]


def hits(server):
    """Return the tokens found cached so far."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(HITS)))


def found(server, before):
    """Return the tokens found since then. vLLM counts a step's tokens after it has handled the step's outputs."""
    now, since_s = hits(server), time.monotonic()
    while time.monotonic() - since_s < 0.05:
        if (later := hits(server)) != now:
            now, since_s = later, time.monotonic()
    return now - before


def go_on(gate, server, talks, turn=None):
    """Stream every conversation's next turn and return predicted and found tokens per request."""
    pairs = []
    for talk in talks:
        if turn is not None:
            talk.append({"role": "user", "content": f"And at hour {turn}? " * 10})
        before = hits(server)
        body = {"model": gate.model, "messages": talk, "stream": True, "max_tokens": 16, "ignore_eos": True}
        answer = gate.send("/v1/chat/completions", body)
        assert answer.status == 200 and answer.reported is None
        talk.append({"role": "assistant", "content": answer.text})
        gate.settle()
        pairs.append((answer.predicted or 0, found(server, before)))
    assert all(predicted <= really for predicted, really in pairs), f"never more than there is: {pairs}"
    return pairs


def wrong(pairs):
    return sum(predicted != really for predicted, really in pairs)


def candidate(gate):
    (only,) = gate.candidates()
    return only


@pytest.fixture
def warm(front):
    """Return a function that starts a server and serves every conversation's first turn through a gateway that then
    stops."""

    def begin(server, name):
        talks = first_turns(name)
        gate = front(server)
        go_on(gate, server, talks)
        gate.stop()
        return talks

    return begin


def test_a_replay_that_reaches_back_makes_it_exact_at_once(plain, warm, front):
    talks = warm(plain, "replayed")
    gate = front(plain, **PIGGYBACK)
    assert gate.residency() == "exact"
    assert [wrong(go_on(gate, plain, talks, turn)) for turn in range(2)] == [0, 0]
    assert candidate(gate)["events"]["relearn_asks"] == 0, "there is nothing to ask for"


@pytest.mark.nightly
def test_an_exact_gateway_follows_announcements_for_another_gateway(vllm, warm, front):
    """Blocks announced again for one gateway must not count as copies in the other."""
    server = vllm(buffer_steps=SMALL_BUFFER)
    server.reset_prefix_cache()
    whole = front(server)
    go_on(whole, server, first_turns("reset"))
    talks = warm(server, "heard")
    whole.settle()
    before = candidate(whole)["residency"]
    asking = front(server, **PIGGYBACK)
    for turn in range(2):
        go_on(asking, server, talks, turn)
    assert candidate(asking)["events"]["relearn_asks"] > 0
    whole.settle()
    assert wrong(go_on(whole, server, talks, 2)) == 0
    assert before == candidate(whole)["residency"] == "exact"


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param({"buffer_steps": SMALL_BUFFER}, id="small buffer"),
        pytest.param({"replay": False}, id="no replay", marks=pytest.mark.nightly),
    ],
)
def test_without_a_replay_blocks_are_announced_again(vllm, warm, front, lost):
    server = vllm(**lost)
    talks = warm(server, "passive")
    gate = front(server)
    passive = [wrong(go_on(gate, server, talks, turn)) for turn in range(2)]
    assert gate.residency() == "approximate"
    gate.stop()
    talks = warm(server, "asking")
    gate = front(server, **PIGGYBACK)
    began_s = time.monotonic()
    asking = [wrong(go_on(gate, server, talks, 0))]
    took_s = time.monotonic() - began_s
    asking += [wrong(go_on(gate, server, talks, turn)) for turn in (1, 2)]
    events = candidate(gate)["events"]
    print(
        f"\n{lost}, {CONVERSATIONS} conversations: wrong predictions per turn: passive {passive}, piggyback {asking}; "
        f"right after one request each ({took_s:.1f} s), {events['relearn_asks']} of which asked; "
        f"{events['relearned_blocks']} blocks learned of {events['reannounced_blocks']} announced"
    )
    assert passive[-1] == CONVERSATIONS and asking[1:] == [0, 0]
    assert 0 < events["relearn_asks"] <= CONVERSATIONS
    assert "announced again" in candidate(gate)["reason"]


@pytest.mark.nightly
def test_once_the_cache_has_turned_over_the_view_is_exact_again(vllm, warm, front):
    server = vllm("--num-gpu-blocks-override", "500", buffer_steps=SMALL_BUFFER)
    warm(server, "turning")
    gate = front(server, **PIGGYBACK)
    began_s, requests, asks = time.monotonic(), 0, 0
    while gate.residency() != "exact":
        assert requests < 200, candidate(gate)["reason"]
        fresh = first_turns(f"fleet {requests}", 3)
        go_on(gate, server, fresh)
        requests += 3
    asks = candidate(gate)["events"]["relearn_asks"]
    print(f"\nexact after {requests} requests and {time.monotonic() - began_s:.1f} s, {asks} of them asked")
    for turn in range(2):
        pairs = go_on(gate, server, fresh, turn)
        assert wrong(pairs) == 0, pairs
    assert candidate(gate)["events"]["relearn_asks"] == asks and candidate(gate)["events"]["relearned"] == 1


def test_two_gateways_at_once_stay_exact_both(plain, front):
    gates = [front(plain), front(plain)]
    talks = first_turns("two")
    for turn in range(3):
        for gate in gates:
            for talk in talks:
                gate.turn(talk, f"And at hour {turn}? " * 10)
            for other in gates:
                other.settle()
    for gate in gates:
        gate.exact(3 * CONVERSATIONS)
        assert gate.residency() == "exact"
