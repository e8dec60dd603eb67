"""A gateway restarts in front of a warm worker whose replay buffer is too short. The tests check how soon its view is
exact again.

No stream reports its usage here. The cached tokens that a request found come from the worker's counters.
"""

import json
import time
from contextlib import contextmanager

import httpx
import pytest

from loadtest.demo import fleet
from loadtest.demo.run import wait_until_ready
from loadtest.fleet.process import Process, warmroute

pytestmark = [pytest.mark.slow, pytest.mark.measures]

WORKER = ("worker", "--port", "0", "--time-scale", "0.02", "--seed", "3", "--kv-events-buffer-steps", "2")
SYSTEM = {"role": "system", "content": "Answer in the manner of an old lighthouse keeper. " * 12}
CONVERSATIONS = 8
HITS = "vllm:prefix_cache_hits_total"


def first_turn(number: int) -> list[dict[str, str]]:
    text = f"Tale number {number}: what did the sea bring that night? " * 12
    return [SYSTEM, {"role": "user", "content": text}]


class Warm:
    """A worker that has served the first turn of every conversation, without a gateway."""

    def __init__(self, blocks: int | None = None) -> None:
        flags = ["--dev-mode"] if blocks is None else ["--num-gpu-blocks", str(blocks)]
        self.process = Process(warmroute(*WORKER, *flags), "worker")
        self.url = self.process.wait_for(r"worker (http://[^\s]+)").group(1)
        self.model = httpx.get(f"{self.url}/v1/models").json()["data"][0]["id"]

    def hits(self) -> int:
        """Return the tokens found cached so far."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(HITS)))

    def ask(self, url: str, messages, max_tokens=20) -> tuple[str, int | None, int]:
        """Send one stream without usage. Return its text, and the cached tokens predicted and found."""
        body = {"model": self.model, "messages": messages, "max_tokens": max_tokens, "stream": True}
        before = self.hits()
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=30) as answer:
            assert answer.status_code == 200
            lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: {")]
            predicted = answer.headers.get("x-warmroute-predicted-cached-tokens")
        frames = [json.loads(line) for line in lines]
        assert all(frame["choices"] for frame in frames), "no usage was asked for"
        text = "".join(frame["choices"][0]["delta"].get("content") or "" for frame in frames)
        return text, None if predicted is None else int(predicted), self.hits() - before


@pytest.fixture
def warm():
    """Return a function that starts a warm worker, with its conversations so far."""
    workers = []

    def begin(blocks=None):
        worker = Warm(blocks)
        workers.append(worker.process)
        talks = [first_turn(number) for number in range(CONVERSATIONS)]
        for talk in talks:
            text, _, _ = worker.ask(worker.url, talk)
            talk.append({"role": "assistant", "content": text})
        return worker, talks

    yield begin
    for process in workers:
        process.stop()


@contextmanager
def restarted(worker: Warm, **settings: str):
    """Start a gateway. Yield its public and its admin URL."""
    usage = {"WARMROUTE_OBSERVE_USAGE__MODE": "passive"}  # else the reports of sampled streams mend the view, too
    on = {"WARMROUTE_HEADERS__PREDICTED_CACHED_TOKENS": "true", **usage, **settings}
    # The second prompt of a self-test would add to the counted hits.
    flags = ("--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--set", "residency.self_test=false")
    process = Process(warmroute("serve", *flags, "--worker", worker.url), "gateway", on)
    try:
        url = process.wait_for(rf"public port.*{fleet.URL}").group(1)
        admin = process.wait_for(rf"admin port.*{fleet.URL}").group(1)
        wait_until_ready(admin, 1)
        yield url, admin
    finally:
        process.stop()


def candidate(admin: str) -> dict:
    (worker,) = httpx.get(f"{admin}/admin/v1/workers").json()["workers"]
    return worker["candidates"][0]


def settled(admin: str) -> dict:
    before, since_s = None, time.monotonic()
    while time.monotonic() - since_s < 0.1:
        now = candidate(admin)
        progress = (now["events"] or {}).get("next_seq")
        if progress != before:
            before, since_s = progress, time.monotonic()
        time.sleep(0.01)
    return now


def next_turns(worker: Warm, talks, url: str, admin: str, turn: int) -> list[tuple[int, int]]:
    """Send one more turn of every conversation. Return predicted and found tokens per request."""
    pairs = []
    for talk in talks:
        talk.append({"role": "user", "content": f"And then, in watch {turn}? " * 8})
        text, predicted, found = worker.ask(url, talk)
        talk.append({"role": "assistant", "content": text})
        pairs.append((predicted or 0, found))
        settled(admin)
    return pairs


def wrong(pairs) -> int:
    return sum(predicted != found for predicted, found in pairs)


PIGGYBACK = {"WARMROUTE_RESIDENCY__RELEARN": "piggyback"}


@pytest.mark.nightly
def test_piggybacking_relearns_in_one_turn_and_passive_streams_hardly(warm):
    worker, talks = warm()
    with restarted(worker) as (url, admin):
        passive = [next_turns(worker, talks, url, admin, turn) for turn in range(3)]
        assert candidate(admin)["residency"] == "approximate"
        assert candidate(admin)["events"]["relearn_asks"] == 0
    worker, talks = warm()
    with restarted(worker, **PIGGYBACK) as (url, admin):
        asking = [next_turns(worker, talks, url, admin, turn) for turn in range(3)]
        seen = candidate(admin)
    print(f"wrong predictions per turn of {CONVERSATIONS} conversations: passive {[*map(wrong, passive)]}, "
          f"piggyback {[*map(wrong, asking)]}")  # fmt: skip
    assert [wrong(pairs) for pairs in asking[1:]] == [0, 0]
    assert wrong(asking[0]) <= CONVERSATIONS and wrong(passive[2]) == CONVERSATIONS
    assert all(predicted <= found for pairs in (*passive, *asking) for predicted, found in pairs)
    events = seen["events"]
    assert events["relearn_asks"] == wrong(asking[0]), "each conversation asked once; the buffer brought the last one"
    assert 0 < events["relearned_blocks"] <= events["reannounced_blocks"]
    assert f"{events['relearned_blocks']} of them announced again" in seen["reason"]


def test_a_replaced_cache_makes_the_view_exact_and_ends_relearning(warm):
    worker, _ = warm(blocks=600)
    with restarted(worker, **PIGGYBACK) as (url, admin):
        for turn in range(40):
            fresh = [[*first_turn(100 * turn + number)] for number in range(4)]
            pairs = next_turns(worker, fresh, url, admin, turn)
            if candidate(admin)["residency"] == "exact":
                break
        seen = candidate(admin)
        print(f"exact after {4 * (turn + 1)} requests, of which {seen['events']['relearn_asks']} asked")
        assert seen["residency"] == "exact" and seen["events"]["relearned"] == 1, seen["reason"]
        for turn in range(2):
            pairs = next_turns(worker, fresh, url, admin, 100 + turn)
            assert wrong(pairs) == 0, pairs
        assert candidate(admin)["events"]["relearn_asks"] == seen["events"]["relearn_asks"]


def test_a_gateway_that_missed_nothing_stays_exact_while_another_one_relearns(warm):
    """Both gateways receive the blocks that one asks for; neither may count them as further copies."""
    worker, _ = warm()
    httpx.post(f"{worker.url}/reset_prefix_cache")
    talks = [first_turn(number) for number in range(4)]
    with restarted(worker) as (url, admin):
        for turn in range(2):
            next_turns(worker, talks, url, admin, turn)
        witness = candidate(admin)
        with restarted(worker, **PIGGYBACK) as (asking_url, asking_admin):
            for turn in range(2, 4):
                next_turns(worker, talks, asking_url, asking_admin, turn)
            assert candidate(asking_admin)["events"]["relearn_asks"] == len(talks)
            for turn in range(4, 6):
                assert wrong(next_turns(worker, talks, asking_url, asking_admin, turn)) == 0
                assert wrong(next_turns(worker, talks, url, admin, 10 + turn)) == 0
            settled(admin)
        assert candidate(admin)["residency"] == witness["residency"]
