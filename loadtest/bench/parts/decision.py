"""Measure the time of one decision: ``python -m loadtest.bench.parts.decision``.

A fleet of N ready workers publishes KV events, and has some load and learned speeds. The requests are the next turns of
one long conversation. A tenth of the workers hold a part of it, and one holds all of it. The figures are CPU time of
`Dispatcher.dispatch` in microseconds, with residency match and reservation.
"""

from __future__ import annotations

import argparse
import random
import time
from array import array
from collections.abc import Sequence
from functools import cache

from backends.worker import Endpoint, KvEventSource, RankCache, ServedModel, WorkerFacts
from loadtest.bench.publisher import BLOCK_TOKENS, batch, stored
from loadtest.report.summary import percentile
from policies.registry import build_policy
from policies.spec import PolicySpec
from router.config.model import HealthConfig
from router.placement.core import DecisionCore
from router.placement.fleet.fleet import Fleet
from router.placement.request import Request, Usage
from router.placement.tickets import Ticket
from router.residency.chain import SEED, extend_chain
from router.residency.prompt import Prompt, PromptSource
from router.residency.residency_map import ResidencyMap

FACTS = WorkerFacts(
    models=(ServedModel("m"),),
    caches={0: RankCache(BLOCK_TOKENS, 27_500, True)},
    event_sources=(KvEventSource(0, "tcp://127.0.0.1:1"),),
)
HOLDERS = 10
"""One worker in this many holds a part of the conversation."""
SHARES = (0.03, 0.25, 0.5)
"""Parts that are held: a system prompt, or the conversation some turns ago."""
BARS_US = {8: 90.0, 64: 210.0, 512: 250.0, 4096: 1_000.0}
"""Bars of the default rule's median, by number of workers, on one core of the machine of docs/benchmarks.md."""


def make_prompt(ids: Sequence[int]) -> Prompt:
    """Return a prompt that keeps its block hashes, as the gateway's does."""
    whole = array("I", ids[: len(ids) // BLOCK_TOKENS * BLOCK_TOKENS]).tobytes()
    chain = cache(lambda block_tokens: extend_chain(SEED, whole, block_tokens, None))
    return Prompt(len(ids), PromptSource.IDS, chain)


def make_request(index: int, prompt: Prompt) -> Request:
    return Request(f"r{index}", "/v1/completions", "m", prompt, prompt.tokens, 0.0)


def placed(core: DecisionCore, request: Request, now_s: float) -> Ticket:
    """Dispatch a request that a worker accepts at once."""
    ticket = core.dispatcher.dispatch(request, now_s)
    assert isinstance(ticket, Ticket)
    return ticket


def hold(residency: ResidencyMap, slot: int, tokens: Sequence[int]) -> None:
    """Report by a KV event that a worker has stored the whole blocks of a prompt."""
    blocks = len(tokens) // BLOCK_TOKENS
    residency.slot(slot).ingest(0, batch(stored(list(range(1, blocks + 1)), list(tokens[: blocks * BLOCK_TOKENS]))))


def make_core(workers: int, rng: random.Random, conversation: Sequence[int]) -> DecisionCore:
    """Return a decision core over ready workers with learned speeds and some load."""
    residency = ResidencyMap()
    fleet = Fleet(HealthConfig(), residency)
    spec = PolicySpec()
    core = DecisionCore(fleet, residency, build_policy(spec, random.Random(0)), spec=spec)
    for index in range(workers):
        endpoint = fleet.add(Endpoint("http", "127.0.0.1", 1024 + index), 0.0)
        fleet.probe_succeeded(endpoint.id, FACTS, 0.0)
        slot = endpoint.candidates[0].slot
        residency.slot(slot).link_up()
        residency.slot(slot).replay_ended(True)
        if index % HOLDERS == 0:
            share = 1.0 if index == 0 else rng.choice(SHARES)
            hold(residency, slot, conversation[: int(share * len(conversation))])
    for index in range(workers * 12):  # every worker learns its speed, and some requests stay in progress
        prompt = make_prompt([rng.randrange(30_000) for _ in range(rng.randint(64, 512))])
        ticket = placed(core, make_request(index, prompt), index * 0.01)
        core.tickets.first_token(ticket, index * 0.01 + prompt.tokens * 2e-5 + 0.01)
        if index % 3:
            core.tickets.finished(ticket, Usage(prompt.tokens, 20, 0), index * 0.01 + 0.2)
    return core


def measure(workers: int, rounds: int, tokens: int) -> list[float]:
    """Return the decisions' CPU times in microseconds."""
    rng = random.Random(1)
    conversation = [rng.randrange(30_000) for _ in range(tokens)]
    core = make_core(workers, rng, conversation)
    now_s, times_us = workers * 0.12, []
    for index in range(rounds):
        prompt = make_prompt([*conversation, index])
        prompt.chain(BLOCK_TOKENS)  # the tokeniser computes the hashes, so their time does not count
        request = make_request(index, prompt)
        started = time.thread_time()
        ticket = placed(core, request, now_s)
        times_us.append((time.thread_time() - started) * 1e6)
        core.tickets.first_token(ticket, now_s + 0.02)
        core.tickets.finished(ticket, Usage(prompt.tokens, 20, None), now_s + 0.05)
        now_s += 0.01
    return times_us


def main() -> None:
    """Print one line per fleet size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, *BARS_US])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=32_000, help="length of the conversation")
    options = parser.parse_args()
    for workers in options.workers:
        times_us = measure(workers, options.rounds, options.tokens)
        bar = f"  bar {BARS_US[workers]:6.0f} us" if workers in BARS_US else ""
        p50_us, p99_us = (percentile(times_us, share) for share in (0.5, 0.99))
        print(f"{workers:4d} workers  p50 {p50_us:7.1f} us  p99 {p99_us:7.1f} us{bar}")


if __name__ == "__main__":
    main()
