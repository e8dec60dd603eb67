"""Measure the time of one decision: ``python -m loadtest.bench.parts.decision``.

A fleet of N ready workers has some load and learned speeds. The requests are the next turns of one long conversation.
The figures are the CPU time of `Dispatcher.dispatch` in microseconds, with views, residency match and reservation.
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

from backends.worker import Endpoint, RankCache, ServedModel, WorkerFacts
from policies.registry import build_policy, policy_names
from router.config.model import HealthConfig
from router.placement.dispatcher import Dispatcher, Ticket
from router.placement.fleet import Fleet
from router.placement.lifecycle_events import Request, Usage
from router.residency.chain import extend_chain
from router.residency.prompt import Prompt, PromptSource
from router.residency.residency_map import ResidencyMap

BLOCK = 16
FACTS = WorkerFacts(models=(ServedModel("m"),), caches={0: RankCache(BLOCK, 27_500, True)})


def make_prompt(ids: Sequence[int]) -> Prompt:
    """Return a prompt that keeps its block hashes, as the gateway's does."""
    tokens = array("I", ids)
    chains: dict[int, Sequence[int]] = {}

    def chain(block_tokens: int) -> Sequence[int]:
        if block_tokens not in chains:
            whole = tokens[: len(tokens) // block_tokens * block_tokens].tobytes()
            chains[block_tokens] = extend_chain(0, whole, block_tokens, None)
        return chains[block_tokens]

    return Prompt(len(ids), PromptSource.IDS, chain)


def make_request(index: int, prompt: Prompt) -> Request:
    return Request(f"r{index}", "/v1/completions", "m", prompt, prompt.tokens, 0.0)


def placed(dispatcher: Dispatcher, request: Request, now_s: float) -> Ticket:
    """Dispatch a request that a worker accepts at once."""
    ticket = dispatcher.dispatch(request, now_s)
    assert isinstance(ticket, Ticket)
    return ticket


def make_dispatcher(workers: int, policy: str, rng: random.Random) -> Dispatcher:
    """Return a dispatcher over ready workers with learned speeds and some load."""
    residency = ResidencyMap()
    fleet = Fleet(HealthConfig(), residency)
    dispatcher = Dispatcher(fleet, residency, build_policy(policy, {}, random.Random(0)), policy_name=policy)
    for index in range(workers):
        endpoint = fleet.add(Endpoint("http", "127.0.0.1", 1024 + index), 0.0)
        fleet.probe_succeeded(endpoint.id, FACTS, 0.0)
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
    dispatcher = make_dispatcher(workers, policy, rng)
    conversation = [rng.randrange(30_000) for _ in range(tokens)]
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
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--policy", nargs="+", default=policy_names(), choices=policy_names())
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=2_000, help="length of the conversation")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    rows = []
    for policy in options.policy:
        for workers in options.workers:
            rows.append(measure(workers, policy, options.rounds, options.tokens))
            print("{workers:4d} workers  {policy:16s} p50 {p50_us:7.1f} us  p99 {p99_us:7.1f} us".format(**rows[-1]))
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
