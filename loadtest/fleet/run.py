"""``warmroute fleet``: start the fleet, show progress, print the addresses, wait, stop."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import zip_longest
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from backends.clock.settings import ClockSettings
from backends.vllm.handover.connectors import CONNECTORS
from backends.vllm.handover.mooncake import BOOTSTRAP_PORT_LABEL, Mooncake
from backends.vllm.handover.nixl import NixlPull
from backends.vllm.handover.offloading_peer import PEER_LABEL, OffloadingPeer
from backends.vllm.handover.shared_store import SharedStore
from loadtest.fleet.command import LAST_PORT
from loadtest.fleet.embedded import start_workers
from loadtest.fleet.process import Process, StartError, exit_code
from loadtest.fleet.vllm import VllmWorker, find_vllm, start_vllm

_WATCH_S = 0.5
_PORT_LABELS = {Mooncake.name: BOOTSTRAP_PORT_LABEL, OffloadingPeer.name: PEER_LABEL}
"""The label with the port of a worker's side channel, for connectors whose gateway has to know it."""


def run(args: argparse.Namespace) -> int:
    console = Console()

    def work() -> int:
        try:
            _check(args)
            with _started(args, console) as workers:
                show(console, [url for url, _ in workers], args.roles, _connector(args))
                return _watch(dict(workers))
        except KeyboardInterrupt:
            console.print("stopped")
            return 0

    return exit_code("warmroute fleet", work)


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
    _check_connector(args)
    if args.logs is not None:
        args.logs.mkdir(parents=True, exist_ok=True)


def _check_connector(args: argparse.Namespace) -> None:
    named = args.kv_connector
    if args.vllm and named not in (None, NixlPull.name):
        raise StartError(f"--vllm models {NixlPull.name} alone; --kv-connector {named} goes with --simulated")
    if named not in (None, OffloadingPeer.name) and not args.roles:
        raise StartError(f"--kv-connector {named} hands over between roles; add --roles, as prefill=1,decode=1")


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
    return start_vllm(stack, workers, ready, args.logs)


def _simulated(args: argparse.Namespace, stack: ExitStack, ready: Callable[[int], None]) -> list[tuple[str, Process]]:
    flags = ["--profile", args.profile, "--time-scale", str(args.time_scale), "--jitter", str(args.jitter)]
    if args.model_dir is not None:
        flags += ["--model-dir", str(args.model_dir), "--served-model-name", str(args.model_dir)]
    if args.kv_gib is not None:
        flags += ["--kv-gib", str(args.kv_gib)]
    flags += _connector_flags(_connector(args), stack)
    own = [["--port", str(_port(args, number)), "--seed", str(args.seed + number)] for number in range(args.simulated)]
    return start_workers(stack, [[*flags, *each, *args.flags] for each in own], ready, args.logs)


def _connector(args: argparse.Namespace) -> str | None:
    return args.kv_connector or (NixlPull.name if args.roles else None)


def _connector_flags(connector: str | None, stack: ExitStack) -> list[str]:
    if connector is None:
        return []
    flags = ["--kv-connector", connector]
    if isinstance(CONNECTORS[connector], SharedStore):
        flags += ["--kv-store", stack.enter_context(TemporaryDirectory(prefix="warmroute-kv-"))]
    return flags


def _port(args: argparse.Namespace, number: int) -> int:
    """Return the port of worker `number`; 0 leaves the choice to the system."""
    return args.base_port + number if args.base_port is not None else 0


def show(console: Console, urls: list[str], roles: Mapping[str, int], connector: str | None) -> None:
    """Print the workers, and the command of a gateway in front of them. `roles` are those of the first workers."""
    named = [role for role, count in roles.items() for _ in range(count)]
    workers = list(zip_longest(urls, named, fillvalue="mixed"))
    for url, role in workers:
        console.print(f"worker {url} {role}" if roles else f"worker {url}", highlight=False)
    if connector is None:
        line = " ".join(["warmroute serve", *(f"--worker {url}" for url in urls)])
    else:
        setting = "connector" if roles else "pulls"
        given = json.dumps([_described(url, role, connector) for url, role in workers])
        line = f"warmroute serve --set handover.{setting}={connector} --set 'workers={given}'"
    console.print("put the gateway in front:", highlight=False)
    console.print(line, highlight=False, soft_wrap=True)
    console.print("Ctrl-C stops them all.")
    sys.stdout.flush()


def _described(url: str, role: str, connector: str) -> dict[str, object]:
    """Return a worker's entry in the settings. An embedded worker's side channel has the port of its URL."""
    worker: dict[str, object] = {"url": url} if role == "mixed" else {"url": url, "role": role}
    label = _PORT_LABELS.get(connector)
    return worker if label is None else worker | {"labels": {label: url.rpartition(":")[2]}}


def _watch(processes: Mapping[str, Process]) -> int:
    """Say when a worker ends by itself, and let the others serve on: a gateway must live through that, too.

    Raises:
        StartError: the last worker has ended.
    """
    running = dict(processes)
    while True:
        for url, process in [*running.items()]:
            if process.alive:
                continue
            del running[url]
            if not running:
                raise process.ended()
            said = f"{process.ended()}\n{url} is gone; {len(running)} of {len(processes)} workers serve on\n"
            sys.stderr.write(f"warmroute fleet: {said}")
        time.sleep(_WATCH_S)
