"""``python -m loadtest fidelity``: start servers, play scenarios on both sides, replay recordings, print tables."""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from backends.clock.settings import ClockSettings
from backends.engine.profile import Profile, load_profile
from backends.simulated.settings import shipped_model_dir
from loadtest.fidelity import modelled, report
from loadtest.fidelity.command import RECORDED
from loadtest.fidelity.comparison import Comparison, cached_tokens, quantiles
from loadtest.fidelity.differences import differences
from loadtest.fidelity.judgement import Judgement, judge_folder
from loadtest.fidelity.modelled import EngineSettings
from loadtest.fidelity.prompts import prompt_ids
from loadtest.fidelity.recording import RecordingError, recording_names
from loadtest.fidelity.scenarios import SCENARIOS, Scenario
from loadtest.fidelity.served import Served, Server, ServingError, learn
from loadtest.fleet.process import StartError
from loadtest.fleet.vllm import VllmWorker, find_vllm, running_vllm

_KIB_PER_GIB = 1 << 20
SHIPPED_KIB_PER_TOKEN = 1
"""KV size per token of the shipped model shape."""


def run(args: argparse.Namespace) -> int:
    """Run the selected parts; return 1 if a limit is missed or a part could not run."""
    console = Console()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        comparisons = _served(args, console) if args.only != "recorded" else []
        judgements = _recorded(args, console) if args.only != "served" else []
    except (StartError, ServingError, RecordingError) as error:
        sys.stderr.write(f"fidelity: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    if args.json:
        report.write_json(args.json, comparisons, judgements)
    return _verdict(console, comparisons, judgements)


def _served(args: argparse.Namespace, console: Console) -> list[Comparison]:
    """Run the first part: one server per scheduling mode, each scenario with an empty cache."""
    executable = find_vllm(args.vllm_env)
    scenarios = [SCENARIOS[name](args.seed) for name in args.scenario]
    prompts = [prompt_ids(scenario, shipped_model_dir()) for scenario in scenarios]
    comparisons: list[Comparison] = []
    for ahead in (name == "async" for name in args.scheduling):
        worker = server_to_compare(
            executable, load_profile(args.profile), args.cache_tokens, args.time_scale, async_scheduling=ahead
        )
        console.print(f"starting {' '.join(worker.flags)}", highlight=False)
        with running_vllm([worker], logs=args.logs) as [running]:
            comparisons += asyncio.run(
                compare(running.url, worker, list(zip(scenarios, prompts, strict=True)), console)
            )
    report.print_cached(console, comparisons)
    report.print_pressure(console, comparisons)
    report.print_times(console, comparisons)
    return comparisons


def server_to_compare(
    executable: Path, profile: Profile, cache_tokens: int, time_scale: float, *, async_scheduling: bool
) -> VllmWorker:
    """Return a vLLM server in clock mode that `compare` can model: the profile's batch limits, no jitter."""
    flags = ["--max-num-batched-tokens", str(profile.max_num_batched_tokens)]
    flags += ["--max-num-seqs", str(profile.max_num_seqs), "--max-model-len", str(cache_tokens // 2)]
    flags += ["--enable-per-request-metrics", *([] if async_scheduling else ["--no-async-scheduling"])]
    kv_gib = cache_tokens * SHIPPED_KIB_PER_TOKEN / _KIB_PER_GIB
    clock = ClockSettings(profile=profile.name, kv_gib=kv_gib, time_scale=time_scale)
    return VllmWorker(executable=executable, clock=clock, flags=tuple(flags))


async def compare(
    url: str, worker: VllmWorker, scenarios: Sequence[tuple[Scenario, dict[str, list[int]]]], console: Console
) -> list[Comparison]:
    """Play each scenario, with its prompts by request id, through the server at `url` and through the model.

    The front end (HTTP, rendering, tokenising, transfer to the engine) takes time before the engine has a request, and
    is not modelled. Its time is measured with one request in flight, and subtracted from the times under load.
    """
    server = await learn(url, worker.clock.time_scale)
    ahead = "--no-async-scheduling" not in worker.flags
    settings = EngineSettings(load_profile(worker.clock.profile), server.cache.num_gpu_blocks, ahead)
    comparisons, front_end_s = [], 0.0
    for scenario, prompts in scenarios:
        console.print(f"{scenario.name}, {'async' if ahead else 'sync'} scheduling: {scenario.about}", highlight=False)
        served = await server.play(scenario)
        if scenario.one_at_a_time:
            front_end_s = statistics.median(served.front_end_s)
            console.print(f"front end, before the engine has a request: {front_end_s * 1e3:.1f} ms (median, real time)")
        comparisons.append(_compare(scenario, prompts, settings, server, served, front_end_s))
    return comparisons


def _compare(
    scenario: Scenario,
    prompts: dict[str, list[int]],
    settings: EngineSettings,
    server: Server,
    served: Served,
    front_end_s: float,
) -> Comparison:
    ours, theirs = modelled.play(scenario, prompts, settings), served.played
    for outcome in theirs.outcomes:
        if outcome.prompt_tokens != len(prompts[outcome.id]):
            counts = f"{outcome.prompt_tokens} prompt tokens, rendered here {len(prompts[outcome.id])}"
            raise ServingError(f"{outcome.id}: vLLM counts {counts}")
    found = differences(ours, theirs, prompts, server.cache.block_size)
    return Comparison(
        scenario=scenario.name,
        one_at_a_time=scenario.one_at_a_time,
        async_scheduling=settings.async_scheduling,
        cached=cached_tokens(ours, theirs, found),
        times=quantiles(theirs.outcomes, ours.outcomes, less_s=front_end_s / server.time_scale),
        raw_times=quantiles(theirs.outcomes, ours.outcomes),
        preemptions=(ours.preemptions, theirs.preemptions),
        evictions=(ours.history.evictions, theirs.history.evictions),
    )


def _recorded(args: argparse.Namespace, console: Console) -> list[Judgement]:
    """Run the second part. A missing folder is reported, and is an error only if the user named it."""
    folder: Path = args.recorded or RECORDED
    names = recording_names(folder)
    if not names:
        if args.recorded:
            raise RecordingError(f"{folder} holds no recordings (llmservingsim_vllm_*.meta.json)")
        console.print(f"recorded runs: skipped, there is no {folder}; name their folder by --recorded")
        return []
    judgements = judge_folder(folder, names, refit=args.refit)
    report.print_judgements(console, judgements)
    if args.refit:
        report.print_costs(console, judgements)
    return judgements


def _verdict(console: Console, comparisons: Sequence[Comparison], judgements: Sequence[Judgement]) -> int:
    held: list[Comparison | Judgement] = [*comparisons, *judgements]
    missed = [f"{report.title(one)}: {failure}" for one in held for failure in one.failures]
    for line in missed:
        console.print(f"[red]missed[/red] {line}", highlight=False)
    return 1 if missed else 0
