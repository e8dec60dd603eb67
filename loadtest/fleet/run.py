"""``warmroute fleet``: start the fleet, show progress, print the addresses, wait, stop."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import zip_longest

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from backends.clock.settings import ClockSettings
from loadtest.fleet.command import LAST_PORT
from loadtest.fleet.process import Process, StartError, uninterrupted, warmroute
from loadtest.fleet.vllm import RunningVllm, VllmWorker, find_vllm, running_vllm

_URL = r"(http://[^\s\"',]+)"
_WATCH_S = 0.5


def run(args: argparse.Namespace) -> int:
    """Start the fleet that `args` describes, wait for its end, and return the exit code."""
    console = Console()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        _check(args)
        with _started(args, console) as workers:
            _show(console, [url for url, _ in workers], args.roles)
            return _watch([process for _, process in workers])
    except (StartError, OSError) as error:
        sys.stderr.write(f"warmroute fleet: {error}\n")
        return 1
    except KeyboardInterrupt:
        console.print("stopped")
        return 0


def _check(args: argparse.Namespace) -> None:
    for name in ("config.json", "tokenizer.json"):
        if args.model_dir is not None and not (args.model_dir / name).is_file():
            raise StartError(
                f"--model-dir {args.model_dir} has no {name}; name a model folder (weights are not needed)"
            )
    last_port = (args.base_port or 0) + (args.vllm or args.simulated) - 1
    if last_port > LAST_PORT:
        raise StartError(f"--base-port {args.base_port} gives the last worker port {last_port}, above {LAST_PORT}")
    if args.simulated and args.vllm_env is not None:
        raise StartError("--vllm-env goes with --vllm; embedded workers need none")
    named, count = sum(args.roles.values()), args.vllm or args.simulated
    if named > count:
        kind = "--vllm" if args.vllm else "--simulated"
        raise StartError(f"--roles names {named} workers; {kind} {count} starts fewer")
    if args.logs is not None:
        args.logs.mkdir(parents=True, exist_ok=True)


@contextmanager
def _started(args: argparse.Namespace, console: Console) -> Iterator[list[tuple[str, Process]]]:
    count: int = args.vllm or args.simulated
    kind = "vLLM workers" if args.vllm else "embedded workers"
    columns = (SpinnerColumn(), TextColumn(f"starting {kind}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ExitStack() as stack:
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("", total=count)

            def ready(number: int) -> None:
                progress.advance(task)
                progress.console.print(f"worker {number} is healthy")

            workers = _vllm(args, stack, ready) if args.vllm else _simulated(args, stack, ready)
        yield workers


def _vllm(args: argparse.Namespace, stack: ExitStack, ready: Callable[[int], None]) -> list[tuple[str, Process]]:
    clock = ClockSettings(
        profile=args.profile, kv_gib=args.kv_gib, time_scale=args.time_scale, jitter=args.jitter, seed=args.seed
    )
    worker = VllmWorker(
        executable=find_vllm(args.vllm_env),
        model_dir=args.model_dir,
        kv_connector=bool(args.roles),
        flags=tuple(args.flags),
    )
    workers = [
        replace(worker, clock=replace(clock, seed=args.seed + number), port=_port(args, number))
        for number in range(args.vllm)
    ]
    servers: list[RunningVllm] = stack.enter_context(running_vllm(workers, ready, args.logs))
    return [(server.url, server.process) for server in servers]


def _simulated(args: argparse.Namespace, stack: ExitStack, ready: Callable[[int], None]) -> list[tuple[str, Process]]:
    flags = ["--profile", args.profile, "--time-scale", str(args.time_scale), "--jitter", str(args.jitter)]
    if args.model_dir is not None:
        flags += ["--model-dir", str(args.model_dir), "--served-model-name", str(args.model_dir)]
    if args.kv_gib is not None:
        flags += ["--kv-gib", str(args.kv_gib)]
    if args.roles:
        flags += ["--kv-connector", "nixl_pull"]
    processes = []
    for number in range(args.simulated):
        own = ["--port", str(_port(args, number)), "--seed", str(args.seed + number)]
        command = warmroute("worker", *flags, *own, *args.flags)
        log = args.logs / f"worker-{number}.log" if args.logs is not None else None
        with uninterrupted():
            processes.append(Process(command, f"worker {number}", log=log))
            stack.callback(processes[-1].stop)
    workers = []
    for number, process in enumerate(processes):
        workers.append((process.wait_for(rf"worker {_URL}").group(1), process))
        ready(number)
    return workers


def _port(args: argparse.Namespace, number: int) -> int:
    """Return the port of worker `number`; 0 leaves the choice to the system."""
    return args.base_port + number if args.base_port is not None else 0


def _show(console: Console, urls: list[str], roles: Mapping[str, int]) -> None:
    named = [role for role, count in roles.items() for _ in range(count)]
    workers = list(zip_longest(urls, named, fillvalue="mixed"))
    for url, role in workers:
        console.print(f"worker {url} {role}" if roles else f"worker {url}", highlight=False)
    if roles:
        given = json.dumps([{"url": url, "role": role} for url, role in workers])
        line = f"warmroute serve --set handover.connector=nixl_pull --set 'workers={given}'"
    else:
        line = " ".join(["warmroute serve", *(f"--worker {url}" for url in urls)])
    console.print("put the gateway in front:", highlight=False)
    console.print(line, highlight=False, soft_wrap=True)
    console.print("Ctrl-C stops them all.")
    sys.stdout.flush()


def _watch(processes: list[Process]) -> int:
    """Wait until a process ends by itself; the caller then stops the others."""
    while True:
        for process in processes:
            if not process.alive:
                raise process.ended()
        time.sleep(_WATCH_S)
