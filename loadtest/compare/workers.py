"""The fleet that every contender uses in turn: real vLLM servers in clock mode, or embedded workers.

Two settings exist for one peer and change nothing for the others. KV events use vLLM's default topic, the empty one,
because vllm-router 0.1.17 accepts no other. vLLM runs with ``--enable-scale-out``. Without it vLLM refuses the render
paths from which vllm-router's cache-aware policies get a prompt's tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from backends.clock.settings import ClockSettings
from backends.simulated.settings import shipped_model_dir
from backends.vllm.metrics import parse_metrics
from loadtest.fleet.cpu import tree_cpu_s
from loadtest.fleet.embedded import start_workers
from loadtest.fleet.process import StartError
from loadtest.fleet.vllm import VllmWorker, find_vllm, running_vllm

BLOCK_TOKENS = 16
RESET_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Worker:
    """A running worker: its base URL, process id, and KV event addresses if it publishes events."""

    url: str
    pid: int
    events_endpoint: str | None = None
    replay_endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class FleetShape:
    """The settings of the fleet.

    `kv_tokens` is the cache of each worker. `time_scale` multiplies the modelled step times. `vllm_flags` are further
    flags for vLLM's servers.
    """

    workers: int = 4
    simulated: bool = False
    profile: str = "llama-3.1-8b-h100"
    kv_tokens: int = 65_536
    time_scale: float = 4.0
    vllm_env: Path | None = None
    vllm_flags: tuple[str, ...] = ()

    @property
    def blocks(self) -> int:
        return self.kv_tokens // BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of one worker: prompt tokens looked up and found in its cache, CPU seconds used."""

    queries: int
    hits: int
    cpu_s: float

    def since(self, then: Counters) -> Counters:
        return Counters(self.queries - then.queries, self.hits - then.hits, self.cpu_s - then.cpu_s)


@contextmanager
def running_workers(
    shape: FleetShape, logs: Path, progress: Callable[[int], None] = lambda number: None
) -> Iterator[tuple[Worker, ...]]:
    """Start the fleet and stop it on leaving. `progress` is called with the number of each worker that is healthy.

    Raises:
        StartError: a worker did not start.
    """
    with ExitStack() as stack:
        start = _embedded if shape.simulated else _vllm
        yield tuple(_with_events(url, pid) for url, pid in start(shape, logs, progress, stack))


def _vllm(shape: FleetShape, logs: Path, progress: Callable[[int], None], stack: ExitStack) -> list[tuple[str, int]]:
    executable = find_vllm(shape.vllm_env)
    workers = [
        VllmWorker(
            executable=executable,
            topic="",
            clock=ClockSettings(profile=shape.profile, time_scale=shape.time_scale, jitter=0.05, seed=number),
            flags=("--num-gpu-blocks-override", str(shape.blocks), "--enable-scale-out", *shape.vllm_flags),
        )
        for number in range(shape.workers)
    ]
    servers = stack.enter_context(running_vllm(workers, progress, logs))
    return [(server.url, server.process.pid) for server in servers]


def longest_tokens(blocks: int) -> int:
    """Return the length of the longest request that fits a vLLM worker.

    It reserves one of its blocks, the null block.
    """
    return (blocks - 1) * BLOCK_TOKENS


def _embedded(
    shape: FleetShape, logs: Path, progress: Callable[[int], None], stack: ExitStack
) -> list[tuple[str, int]]:
    flags = ["--port", "0", "--dev-mode", "--kv-events-topic", "", "--num-gpu-blocks", str(shape.blocks)]
    flags += ["--profile", shape.profile, "--time-scale", str(shape.time_scale)]
    own = [[*flags, "--seed", str(number)] for number in range(shape.workers)]
    return [(url, process.pid) for url, process in start_workers(stack, own, progress, logs)]


def _with_events(url: str, pid: int) -> Worker:
    source = httpx.get(f"{url}/kv_event_sources", timeout=10).raise_for_status().json().get("0", {})
    endpoint, replay = (_dialled(source.get(key)) for key in ("endpoint", "replay_endpoint"))
    return Worker(url, pid, endpoint, replay)


def _dialled(endpoint: str | None) -> str | None:
    return endpoint.replace("//*:", "//127.0.0.1:") if endpoint else None


def served_model(worker: Worker) -> tuple[str, Path]:
    """Return the model's served name, and the folder with its tokenizer."""
    card = httpx.get(f"{worker.url}/v1/models", timeout=10).raise_for_status().json()["data"][0]
    root = Path(card["root"])
    return str(card["id"]), root if (root / "tokenizer.json").is_file() else shipped_model_dir()


def empty_caches(workers: Sequence[Worker], model: str) -> None:
    """Empty every worker's prefix cache, and make the worker publish that.

    vLLM publishes the event of a reset with its next step, so one short request goes directly to each worker.

    Raises:
        StartError: a worker refused, because it still had requests in progress.
    """
    for worker in workers:
        _reset(worker)
        body = {"model": model, "prompt": "Ready?", "max_tokens": 1}
        httpx.post(f"{worker.url}/v1/completions", json=body, timeout=30).raise_for_status()


def _reset(worker: Worker) -> None:
    end_s = time.monotonic() + RESET_LIMIT_S
    while not _reset_once(worker):
        if time.monotonic() > end_s:
            raise StartError(f"{worker.url} did not empty its cache within {RESET_LIMIT_S:.0f} s")
        time.sleep(0.2)


def _reset_once(worker: Worker) -> bool:
    response = httpx.post(f"{worker.url}/reset_prefix_cache", timeout=10).raise_for_status()
    return not response.content or response.json().get("success", True) is True


def read_counters(worker: Worker) -> Counters:
    page = parse_metrics(httpx.get(f"{worker.url}/metrics", timeout=10).raise_for_status().text)
    queries = sum(load.prefix_queries or 0 for load in page.loads)
    hits = sum(load.prefix_hits or 0 for load in page.loads)
    return Counters(queries, hits, tree_cpu_s(worker.pid))
