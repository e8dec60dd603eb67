"""Measure a what-if on the decisions in memory: ``python -m loadtest.bench.parts.what_if``.

A fleet of N workers places conversations until the log is full. Printed are the memory of the log, and the CPU time of
a what-if with each rule: the whole of it, and the longest part between two turns of the event loop.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
import tracemalloc
from collections import deque

from loadtest.bench.parts.decision import BLOCK, make_dispatcher, make_prompt, make_request, placed
from loadtest.lab.flags import policy as policy_of
from loadtest.lab.policies import parse_policy
from policies.registry import build_policy
from router.placement.dispatcher import Dispatcher, Ticket
from router.placement.lifecycle_events import Usage
from router.residency.prompt import Prompt

TOKENS = 2_000
"""Longest prompt."""


def make_prompts(count: int, rng: random.Random) -> list[Prompt]:
    """Return prompts that begin with parts of the same text."""
    shared = [rng.randrange(30_000) for _ in range(TOKENS)]
    prompts = []
    for _ in range(count):
        begin = shared[: rng.randrange(TOKENS)]
        prompts.append(make_prompt([*begin, *[rng.randrange(30_000) for _ in range(rng.randrange(64, 512))]]))
        prompts[-1].chain(BLOCK)  # the gateway keeps the hashes with the prompt, not with the decision
    return prompts


def fill(dispatcher: Dispatcher, prompts: list[Prompt], workers: int) -> None:
    """Place the prompts, with a request in progress on every fourth worker."""
    running: deque[tuple[Ticket, int]] = deque()
    now_s = workers * 0.12
    for index, prompt in enumerate(prompts):
        ticket = placed(dispatcher, make_request(index, prompt), now_s)
        running.append((ticket, prompt.tokens))
        dispatcher.first_token(ticket, now_s + 0.02)
        now_s += 0.03
        if len(running) > workers // 4:
            ended, tokens = running.popleft()
            dispatcher.finished(ended, Usage(tokens, 20, None), now_s)


def asked(dispatcher: Dispatcher, rule: str) -> str:
    """Return the line of one what-if."""
    decided, longest_s = 0, 0.0
    began_s = since_s = time.thread_time()
    with dispatcher.what_ifs.begin(parse_policy(rule)) as what_if:
        for one in what_if:
            now_s = time.thread_time()
            longest_s, since_s = max(longest_s, now_s - since_s), now_s
            decided += one is not None
    whole_s = time.thread_time() - began_s
    return f"    {rule:<16} {decided:5,} decisions  {whole_s:6.2f} s  longest part {1e3 * longest_s:6.1f} ms"


def measure(workers: int, policy: str, rules: list[str], kept: int) -> list[str]:
    """Return the lines of one fleet."""
    rng = random.Random(1)
    prompts, dispatcher = make_prompts(kept, rng), make_dispatcher(workers, policy, rng)
    fill(dispatcher, prompts[:1], workers)  # what the first decision makes is no part of the log
    gc.collect()
    tracemalloc.start()
    fill(dispatcher, prompts, workers)
    gc.collect()
    grown_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    gc.freeze()  # as the gateway does with what stays
    head = f"{workers:5} workers  {policy:<16} {kept:5,} decisions  {grown_bytes / 1e6:6.1f} MB"
    for rule in rules:
        build_policy(parse_policy(rule), rng)  # reads the rules that other packages bring, once in a process
    return [head, *[asked(dispatcher, rule) for rule in rules]]


def main() -> None:
    """Print the lines of each fleet size and recorded policy."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.parts.what_if", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[32, 64, 512])
    parser.add_argument("--policy", nargs="+", default=["marginal_cost"], type=policy_of, help="policies that decided")
    parser.add_argument(
        "--rule", nargs="+", default=["lpwl", "marginal_cost", "preble"], type=policy_of, help="policies to ask"
    )
    parser.add_argument("--decisions", type=int, default=1_000)
    options = parser.parse_args()
    for workers in options.workers:
        for policy in options.policy:
            print("\n".join(measure(workers, policy, options.rule, options.decisions)), flush=True)


if __name__ == "__main__":
    main()
