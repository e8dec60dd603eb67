"""Data-parallel ranks: a worker is an endpoint and a rank, and the gateway sends a prompt back to its rank."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

pytestmark = [pytest.mark.any_version, pytest.mark.nightly]

SYSTEM = "There are two of you behind one door, and each remembers only what it was asked itself. " * 20


@pytest.fixture(scope="module")
def ranks(vllm):
    return vllm("--data-parallel-size", "2", "--api-server-count", "1")


@pytest.fixture
def gateway(ranks, front):
    ranks.reset_prefix_cache()
    gateway = front(ranks)
    assert [candidate["rank"] for candidate in gateway.candidates()] == [0, 1]
    assert [candidate["residency"] for candidate in gateway.candidates()] == ["exact", "exact"]
    return gateway


def test_a_conversation_stays_with_its_rank(gateway):
    for number in range(4):
        messages, workers = [{"role": "system", "content": f"{number} {SYSTEM}"}], set()
        for turn in range(4):
            answer = gateway.turn(messages, f"Question {turn}", max_tokens=20)
            assert (answer.reported > 200) == bool(turn)
            workers.add(answer.worker)
        assert len(workers) == 1
    gateway.exact(16)


def test_load_goes_to_both_ranks_and_prompts_return_to_theirs(gateway):
    def ask(number):
        body = {"model": gateway.model, "prompt": f"{number} {SYSTEM}", "max_tokens": 60, "ignore_eos": True}
        return gateway.send("/v1/completions", body)

    with ThreadPoolExecutor(12) as pool:
        first = list(pool.map(ask, range(24)))
    gateway.settle()
    homes = [answer.worker for answer in first]
    assert min(Counter(homes).values()) >= 6 and len(set(homes)) == 2
    for number in range(24):
        answer = gateway.complete(f"{number} {SYSTEM}")
        assert answer.worker == homes[number] and answer.reported > 200
    gateway.exact(24)
    assert all(candidate["events"]["batches"] > 0 for candidate in gateway.candidates())


def to_rank(ranks, rank, text):
    """Send a request straight to a rank."""
    body, headers = (
        {"model": "warmroute-simulated", "prompt": text, "max_tokens": 1},
        {"X-data-parallel-rank": str(rank)},
    )
    httpx.post(f"{ranks.url}/v1/completions", json=body, headers=headers, timeout=30).raise_for_status()


def test_a_rank_that_the_client_asks_for_is_its_own(ranks, gateway):
    """Requests that clients send straight to a rank show in that rank's events."""
    for rank in (0, 1):
        text = f"To rank {rank}: {SYSTEM}"
        to_rank(ranks, rank, text)
        gateway.settle()
        answer = gateway.complete(text)
        assert answer.worker.endswith(f"#{rank}") and answer.reported > 200
    gateway.exact(2)


def test_a_reset_of_both_ranks_is_followed(ranks, gateway):
    texts = [f"{number} {SYSTEM}" for number in range(4)]
    for text in texts:
        gateway.complete(text)
    ranks.reset_prefix_cache()
    for rank in (0, 1):
        to_rank(ranks, rank, "step")
    gateway.settle()
    for text in texts:
        assert gateway.complete(text).reported == 0
        assert gateway.complete(text).reported > 200
    gateway.exact(12)
