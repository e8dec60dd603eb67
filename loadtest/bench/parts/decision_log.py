"""Measure what a decision log costs: ``python -m loadtest.bench.parts.decision_log``.

One request is the next turn of a conversation: its decision and its two lifecycle events. Requests with and without the
log alternate, on two dispatchers that are alike. Printed are the CPU time of both on the event loop, the bytes of one
request in the log before and after compression, and the size of a snapshot.
"""

from __future__ import annotations

import argparse
import gzip
import random
import statistics
import time

from loadtest.bench.parts.decision import BLOCK, make_dispatcher, make_prompt, make_request, placed
from router.placement.decision_log.recorder import Recorder
from router.placement.dispatcher import Dispatcher
from router.placement.lifecycle_events import Usage

COMPRESSION = 1
"""As in `router.telemetry.decision_log_file`."""


class Lines:
    """Keeps the lines in memory."""

    full = False

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, line: bytes) -> bool:
        """Keep a line."""
        self.lines.append(line)
        return True

    def rotate(self) -> None:
        """There is no file to begin."""


def turn_us(dispatcher: Dispatcher, index: int, tokens: list[int], now_s: float) -> float:
    """Return the CPU time of one request in microseconds."""
    prompt = make_prompt(tokens)
    prompt.chain(BLOCK)  # the tokeniser computes the hashes, so their time does not count
    started_s = time.thread_time()
    ticket = placed(dispatcher, make_request(index, prompt), now_s)
    dispatcher.first_token(ticket, now_s + 0.02)
    dispatcher.finished(ticket, Usage(prompt.tokens, 20, None), now_s + 0.05)
    return (time.thread_time() - started_s) * 1e6


def measure(workers: int, policy: str, rounds: int, tokens: int) -> str:
    """Return the line of one fleet."""
    conversation = [random.Random(1).randrange(30_000) for _ in range(tokens)]
    plain, logged = (make_dispatcher(workers, policy, random.Random(1), conversation) for _ in range(2))
    sink = Lines()
    logged.record(Recorder(sink, time.time))
    times_us: tuple[list[float], list[float]] = ([], [])
    now_s, context = workers * 0.12, list(conversation)
    rng = random.Random(2)
    for index in range(rounds):
        context += [rng.randrange(30_000) for _ in range(200)]
        for dispatcher, taken_us in zip((plain, logged), times_us, strict=True):
            taken_us.append(turn_us(dispatcher, index, context, now_s))
        now_s += 0.01
    snapshot, raw = sink.lines[0], b"".join(sink.lines[1:])
    packed = len(gzip.compress(raw, COMPRESSION)) / rounds
    without_us, with_us = (statistics.median(taken_us) for taken_us in times_us)
    return (
        f"{workers:5} workers  {without_us:7.1f} us a request, {with_us:7.1f} us with the log"
        f"  {len(raw) / rounds:9,.0f} bytes, {packed:7,.0f} compressed  snapshot {len(snapshot):,} bytes"
    )


def main() -> None:
    """Print one line per fleet size."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.parts.decision_log", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--policy", default="marginal_cost")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=32_000, help="length of the conversation at the first turn")
    options = parser.parse_args()
    for workers in options.workers:
        print(measure(workers, options.policy, options.rounds, options.tokens))


if __name__ == "__main__":
    main()
