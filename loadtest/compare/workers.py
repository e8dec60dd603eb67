"""The fleet that every contender uses in turn: real vLLM servers in clock mode, or embedded workers.

Two settings exist for one peer and change nothing for the others. KV events use vLLM's default topic, the empty one,
because vllm-router 0.1.17 accepts no other. vLLM runs with ``--enable-scale-out``. Without it vLLM refuses the render
paths from which vllm-router's cache-aware policies get a prompt's tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx

from backends.clock.settings import ClockSettings
from backends.engine.profile import load_profile
from backends.simulated.settings import shipped_model_dir
from loadtest.compare.contenders import Worker
from loadtest.compare.settings import BLOCK_TOKENS, kv_tokens, longest_tokens
from loadtest.fleet.embedded import start_workers
from loadtest.fleet.process import until
from loadtest.fleet.vllm import VllmWorker, find_vllm, start_vllm

RESET_LIMIT_S = 20.0


def start_fleet(
    stack: ExitStack, args: argparse.Namespace, logs: Path, progress: Callable[[int], None]
) -> tuple[Worker, ...]:
    """Start the command's workers, all at once. `progress` gets the number of each worker that is healthy.

    Raises:
        StartError: a worker did not start.
    """
    if args.backend == "vllm":
        found = start_vllm(stack, _vllm_workers(args), progress, logs)
    else:
        found = start_workers(stack, _embedded_flags(args), progress, logs)
    return tuple(_with_events(url, process.pid) for url, process in found)


def _vllm_workers(args: argparse.Namespace) -> list[VllmWorker]:
    worker = VllmWorker(executable=find_vllm(args.vllm_env), topic="", flags=vllm_flags(args))
    clock = ClockSettings(profile=args.profile, time_scale=args.time_scale, jitter=0.05)
    return [replace(worker, clock=replace(clock, seed=number)) for number in range(args.workers)]


def vllm_flags(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the profile's limits and the cache size as flags of vLLM. Embedded workers know the limits."""
    profile = load_profile(args.profile)
    values = {
        "--num-gpu-blocks-override": kv_tokens(args) // BLOCK_TOKENS,
        "--max-num-batched-tokens": profile.max_num_batched_tokens,
        "--max-num-seqs": profile.max_num_seqs,
        "--max-model-len": longest_tokens(args),
    }
    return ("--enable-scale-out", *(word for flag, value in values.items() for word in (flag, str(value))))


def _embedded_flags(args: argparse.Namespace) -> list[list[str]]:
    flags = ["--port", "0", "--dev-mode", "--kv-events-topic", "", "--profile", args.profile]
    flags += ["--num-gpu-blocks", str(kv_tokens(args) // BLOCK_TOKENS), "--time-scale", str(args.time_scale)]
    return [[*flags, "--seed", str(number)] for number in range(args.workers)]


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
        until(partial(_reset_once, worker), lambda: "a worker did not empty its cache", RESET_LIMIT_S, 0.2)
        body = {"model": model, "prompt": "Ready?", "max_tokens": 1}
        httpx.post(f"{worker.url}/v1/completions", json=body, timeout=30).raise_for_status()


def _reset_once(worker: Worker) -> bool:
    response = httpx.post(f"{worker.url}/reset_prefix_cache", timeout=10).raise_for_status()
    return not response.content or response.json().get("success", True) is True
