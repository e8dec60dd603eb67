"""Measure the time of one decision: ``python -m loadtest.bench.parts.decision``.

A fleet of N ready workers publishes KV events, and has some load and learned speeds. The requests are the next turns of
one long conversation. A tenth of the workers hold a part of it, and one holds all of it. The figures are CPU time of
`Dispatcher.dispatch` in microseconds, with residency match and reservation.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from backends.worker import Endpoint, KvEventSource, RankCache, ServedModel, WorkerFacts
from loadtest.lab.flags import policy as policy_of
from loadtest.lab.policies import parse_policy
from policies.registry import build_policy
from router.config.model import HealthConfig
from router.placement.dispatcher import Dispatcher, Ticket
from router.placement.fleet.fleet import Fleet
from router.placement.load import fleet_load
from router.placement.load.fleet_load import ARRAYS_FROM
from router.placement.request import Request, Usage
from router.residency.chain import SEED, extend_chain
from router.residency.prompt import Prompt, PromptSource
from router.residency.residency_map import ResidencyMap

BLOCK = 16
FACTS = WorkerFacts(
    models=(ServedModel("m"),),
    caches={0: RankCache(BLOCK, 27_500, True)},
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
    tokens = array("I", ids)
    chains: dict[int, Sequence[int]] = {}

    def chain(block_tokens: int) -> Sequence[int]:
        if block_tokens not in chains:
            whole = tokens[: len(tokens) // block_tokens * block_tokens].tobytes()
            chains[block_tokens] = extend_chain(SEED, whole, block_tokens, None)
        return chains[block_tokens]

    return Prompt(len(ids), PromptSource.IDS, chain)


def make_request(index: int, prompt: Prompt) -> Request:
    return Request(f"r{index}", "/v1/completions", "m", prompt, prompt.tokens, 0.0)


def placed(dispatcher: Dispatcher, request: Request, now_s: float) -> Ticket:
    """Dispatch a request that a worker accepts at once."""
    ticket = dispatcher.dispatch(request, now_s)
    assert isinstance(ticket, Ticket)
    return ticket


def hold(residency: ResidencyMap, slot: int, tokens: Sequence[int], seq: int) -> None:
    """Report by a KV event that a worker has stored the whole blocks of a prompt."""
    blocks = len(tokens) // BLOCK
    stored = {
        "type": "BlockStored",
        "block_hashes": list(range(1, blocks + 1)),
        "parent_block_hash": None,
        "token_ids": list(tokens[: blocks * BLOCK]),
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
    }
    residency.ingest(slot, seq, msgspec.msgpack.encode([0.0, [stored], 0]))


def make_dispatcher(workers: int, policy: str, rng: random.Random, conversation: Sequence[int] = ()) -> Dispatcher:
    """Return a dispatcher over ready workers with learned speeds and some load."""
    residency = ResidencyMap()
    fleet = Fleet(HealthConfig(), residency)
    spec = parse_policy(policy)
    dispatcher = Dispatcher(fleet, residency, build_policy(spec, random.Random(0)), spec=spec)
    for index in range(workers):
        endpoint = fleet.add(Endpoint("http", "127.0.0.1", 1024 + index), 0.0)
        fleet.probe_succeeded(endpoint.id, FACTS, 0.0)
        slot = endpoint.candidates[0].slot
        residency.link_up(slot)
        residency.replay_ended(slot, True)
        if conversation and index % HOLDERS == 0:
            share = 1.0 if index == 0 else rng.choice(SHARES)
            hold(residency, slot, conversation[: int(share * len(conversation))], 0)
    for index in range(workers * 12):  # every worker learns its speed, and some requests stay in progress
        prompt = make_prompt([rng.randrange(30_000) for _ in range(rng.randint(64, 512))])
        ticket = placed(dispatcher, make_request(index, prompt), index * 0.01)
        dispatcher.first_token(ticket, index * 0.01 + prompt.tokens * 2e-5 + 0.01)
        if index % 3:
            dispatcher.finished(ticket, Usage(prompt.tokens, 20, 0), index * 0.01 + 0.2)
    return dispatcher


def measure(workers: int, policy: str, rounds: int, tokens: int) -> dict[str, Any]:
    """Return p50 and p99 of the decision's CPU time for one fleet and policy."""
    rng = random.Random(1)
    conversation = [rng.randrange(30_000) for _ in range(tokens)]
    dispatcher = make_dispatcher(workers, policy, rng, conversation)
    now_s, times_us = workers * 0.12, []
    for index in range(rounds):
        prompt = make_prompt([*conversation, index])
        prompt.chain(BLOCK)  # the tokeniser computes the hashes, so their time does not count
        request = make_request(index, prompt)
        started = time.thread_time()
        ticket = dispatcher.dispatch(request, now_s)
        times_us.append((time.thread_time() - started) * 1e6)
        assert isinstance(ticket, Ticket)
        dispatcher.first_token(ticket, now_s + 0.02)
        dispatcher.finished(ticket, Usage(prompt.tokens, 20, None), now_s + 0.05)
        now_s += 0.01
    times_us.sort()
    return {
        "workers": workers,
        "policy": policy,
        "p50_us": round(statistics.median(times_us), 1),
        "p99_us": round(times_us[int(0.99 * len(times_us))], 1),
    }


def main() -> None:
    """Print one line per policy and fleet size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, *BARS_US])
    parser.add_argument("--policy", nargs="+", default=["marginal_cost"], type=policy_of, metavar="RULE[:key=value...]")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=32_000, help="length of the conversation")
    parser.add_argument(
        "--arrays-from", type=int, default=ARRAYS_FROM, metavar="N", help="fewest candidates to decide with arrays"
    )
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    fleet_load.ARRAYS_FROM = options.arrays_from
    rows = []
    for policy in options.policy:
        for workers in options.workers:
            row = measure(workers, policy, options.rounds, options.tokens)
            rows.append(row)
            bar = f"  bar {BARS_US[workers]:6.0f} us" if policy == "marginal_cost" and workers in BARS_US else ""
            print("{workers:4d} workers  {policy:16s} p50 {p50_us:7.1f} us  p99 {p99_us:7.1f} us".format(**row) + bar)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
