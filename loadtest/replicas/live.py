"""Cases on real processes: embedded workers, one gateway or two, and Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx
import uvloop

from loadtest.drive.chat import Timing
from loadtest.drive.conversations import play
from loadtest.fleet.redis import redis_server
from loadtest.replicas.cases import Case, Played, Share, cases, share
from loadtest.replicas.fleet import Gateway, gateways, wait_until, workers
from loadtest.workload.conversations import Conversation, Shape, generate

COUNTS = (1, 2)
WORKERS = 4
_FLAGS = ("--set", "headers.worker=true")


def measure(shape: Shape, rounds: int, progress: Callable[[], None]) -> list[Played]:
    """Play the conversations in each case, each on a fresh fleet. A round has a seed of its own, and its own order.

    Raises:
        StartError: a fleet did not start.
    """
    listed = cases(COUNTS)
    found: dict[Case, list[Share]] = {case: [] for case in listed}
    for seed in range(rounds):
        for case in listed[seed % len(listed) :] + listed[: seed % len(listed)]:
            found[case].append(play_case(case, shape, seed))
            progress()
    return [Played(case, tuple(runs)) for case, runs in found.items()]


def play_case(case: Case, shape: Shape, seed: int) -> Share:
    """Play one case once."""
    worker_flags = ["--time-scale", "3"] + ([] if case.events else ["--no-kv-events"])
    with workers(WORKERS, worker_flags) as urls, _redis_flags(case) as redis_flags:
        flags = [flag for url in urls for flag in ("--worker", url)]
        with gateways(case.gateways, [*flags, *_FLAGS, *redis_flags]) as running:
            wait_until(lambda: all(_ready(gateway, case) for gateway in running), f"the gateways of {case} are ready")
            model = httpx.get(f"{running[0].public_url}/v1/models").json()["data"][0]["id"]
            timings = uvloop.run(_play(running, model, generate(shape, seed)))
    return _figures(timings, [urlsplit(url).netloc for url in urls])


@contextmanager
def _redis_flags(case: Case) -> Iterator[list[str]]:
    if not case.redis:
        yield []
        return
    with redis_server() as server:
        yield ["--set", f"redis.url={server.url}"]


def _ready(gateway: Gateway, case: Case) -> bool:
    return gateway.ready(WORKERS, case.views) and (not case.redis or gateway.sharing(case.gateways))


async def _play(running: Sequence[Gateway], model: str, conversations: Sequence[Conversation]) -> list[Timing]:
    """Deal the conversations out to the gateways, and play them all at once."""
    dealt = [conversations[number :: len(running)] for number in range(len(running))]
    plays = [play(gateway.public_url, model, own) for gateway, own in zip(running, dealt, strict=True)]
    return [timing for timings in await asyncio.gather(*plays) for timing in timings]


def _figures(timings: Sequence[Timing], workers: Sequence[str]) -> Share:
    done = [timing for timing in timings if timing.error is None and timing.worker is not None]
    calls = [(str(timing.worker), timing.prompt_tokens, timing.cached_tokens) for timing in done]
    ttfts_s = [timing.ttft_s for timing in done if timing.ttft_s is not None]
    return share(calls, workers, ttfts_s, failed=len(timings) - len(done))
