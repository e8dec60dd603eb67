"""What KV events cost a Warmroute: first bytes beside a publisher, as multiples of those without, and CPU time.

Each rate has a gateway and a stand-in of its own. The publisher shares the machine's cores with them.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from loadtest.bench.bodies import plain_requests
from loadtest.bench.loops import ClosedLoop
from loadtest.bench.measures.subject import Sample, Setting, Subject
from loadtest.bench.proxies.entrant import Place, Proxy, running, standin
from loadtest.bench.proxies.warmroute import starter
from loadtest.fleet.cpu import tree_cpu_s
from loadtest.fleet.ports import free_ports
from loadtest.report.summary import percentile

WITHOUT, CPU = "events-none", "events-cpu"
RATES: Mapping[str, int] = {"events-50k": 50_000, "events-500k": 500_000}
"""Blocks per second, by figure."""
CPU_RATE = 100_000
CPU_S = 4.0
PROCESSES = 2
CONNECTIONS = 4
REQUESTS_PER_S = 2_000
"""Requests of a round per second of the window."""
BODY_CHARS = 2000
START_S = 30.0


async def events(subject: Subject, setting: Setting) -> Mapping[str, Sample]:
    """Measure the 99th percentile of the time to the first body byte, and the CPU time of events without requests."""
    if not subject.program:
        return dict.fromkeys((WITHOUT, *RATES, CPU), Sample(0.0, 0, 0.0, 0, skipped="no Warmroute"))
    count = int(REQUESTS_PER_S * setting.window_s)
    without = await _first_byte(subject.program, 0, count)
    found = {WITHOUT: without}
    for figure, rate in RATES.items():
        beside = await _first_byte(subject.program, rate, count)
        errors, reasons = without.errors + beside.errors, (*without.reasons, *beside.reasons)
        found[figure] = Sample(beside.value / max(without.value, 1e-9), count, beside.rate, errors, reasons)
    spent_s = await _spent_s(subject.program, CPU_RATE) - await _spent_s(subject.program, 0)
    return found | {CPU: Sample(spent_s, 0, CPU_S, 0)}


async def _first_byte(program: tuple[str, ...], blocks_per_s: int, count: int) -> Sample:
    with _gateway(program, blocks_per_s, PROCESSES) as proxy:
        await _asked(proxy, count // 4)
        begin_s = time.monotonic()
        loop = await _asked(proxy, count)
        p99_ms = percentile(loop.tally.first_byte_s, 0.99) * 1e3
        rate = count / (time.monotonic() - begin_s)
        return Sample(p99_ms, count, rate, loop.tally.errors, tuple(loop.tally.reasons))


async def _asked(proxy: Proxy, count: int) -> ClosedLoop:
    requests = itertools.islice(itertools.cycle(plain_requests(proxy.url, BODY_CHARS)), count)
    loop = ClosedLoop(proxy.url, requests)
    await loop.start(CONNECTIONS)
    await loop.drain()
    return loop


async def _spent_s(program: tuple[str, ...], blocks_per_s: int) -> float:
    """Return the CPU seconds of one process in `CPU_S` without requests."""
    with _gateway(program, blocks_per_s, 1) as proxy:
        await asyncio.sleep(1.0)  # the whole cache of the publisher is known, and all imports are over
        before_s = tree_cpu_s(proxy.pid)
        await asyncio.sleep(CPU_S)
        return tree_cpu_s(proxy.pid) - before_s


@contextmanager
def _gateway(program: tuple[str, ...], blocks_per_s: int, processes: int) -> Iterator[Proxy]:
    """Run a gateway, and a publisher unless `blocks_per_s` is 0; yield when all processes serve and events arrive.

    Raises:
        RuntimeError: a process does not serve, or no KV event reached the gateway.
    """
    with tempfile.TemporaryDirectory(prefix="warmroute-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        place = Place(stack.enter_context(standin(folder)), folder)
        flags = _publisher(stack, place, blocks_per_s) if blocks_per_s else []
        admin = free_ports(1)
        flags += ["--admin-port", str(admin), "--processes", str(processes)]
        proxy = stack.enter_context(starter("gateway", flags, program)(place))
        deadline_s = time.monotonic() + START_S
        while not _settled(admin, processes, blocks_per_s > 0):
            if time.monotonic() >= deadline_s:
                raise RuntimeError("a process does not serve, or no KV event reached the gateway")
            time.sleep(0.1)
        yield proxy


def _settled(admin: int, processes: int, events: bool) -> bool:
    try:
        ready = httpx.get(f"http://127.0.0.1:{admin}/readyz").json()
        page = httpx.get(f"http://127.0.0.1:{admin}/metrics").text
    except httpx.TransportError:
        return False
    indexed = re.search(r"^warmroute_index_hashes (\S+)", page, re.MULTILINE)
    arrived = indexed is not None and float(indexed[1]) > 0
    return ready.get("processes_ready", 1) == processes and (arrived or not events)


def _publisher(stack: ExitStack, place: Place, blocks_per_s: int) -> list[str]:
    port = free_ports(1)
    command = [sys.executable, "-m", "loadtest.bench.publisher", "--port", str(port)]
    stack.enter_context(running("publisher", [*command, "--blocks-per-s", str(blocks_per_s)], port, place.folder))
    config = place.folder / "events.yaml"
    config.write_text(
        f"workers:\n- url: {place.worker_url}\n  kv_events:\n    endpoint: tcp://127.0.0.1:{port}\n"
        "residency:\n  self_test: false\n"
    )
    return ["--config", str(config)]
