"""What KV events cost a Warmroute: first bytes beside a publisher, as multiples of those without, and CPU time.

Each rate has a gateway and a stand-in of its own. The publisher shares the machine's cores with them.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from loadtest.bench.caller import Tally, send_each_once
from loadtest.bench.measures.sample import Sample, Samples, Setting
from loadtest.bench.proxies.entrant import Proxy, running, standins
from loadtest.bench.proxies.warmroute import started
from loadtest.fleet.cpu import tree_cpu_s
from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import until
from loadtest.load.metrics_page import sums
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
START_S = 30.0


async def events(proxy: Proxy, setting: Setting) -> Samples:
    """Measure the 99th percentile of the time to the first body byte, and the CPU time of events without requests."""
    if not proxy.program:
        return dict.fromkeys((WITHOUT, *RATES, CPU), Sample(skipped="no Warmroute"))
    count = int(REQUESTS_PER_S * setting.window_s)
    without, without_ms = await _first_byte(proxy.program, 0, count)
    found = {WITHOUT: Sample.of(without_ms, 0.0, without)}
    for figure, rate in RATES.items():
        beside, beside_ms = await _first_byte(proxy.program, rate, count)
        found[figure] = Sample.of(beside_ms / max(without_ms, 1e-9), 0.0, without, beside)
    spent_s = await _spent_s(proxy.program, CPU_RATE) - await _spent_s(proxy.program, 0)
    return found | {CPU: Sample(spent_s)}


async def _first_byte(program: tuple[str, ...], blocks_per_s: int, count: int) -> tuple[Tally, float]:
    """Return the results of `count` requests, and the 99th percentile in milliseconds."""
    with _gateway(program, blocks_per_s, PROCESSES) as proxy:
        requests = list(itertools.islice(itertools.cycle(proxy.requests()), count))
        await send_each_once(proxy.url, requests[: count // 4], CONNECTIONS)
        tally = await send_each_once(proxy.url, requests, CONNECTIONS)
    return tally, percentile(tally.first_byte_s, 0.99) * 1e3


async def _spent_s(program: tuple[str, ...], blocks_per_s: int) -> float:
    """Return the CPU seconds of one process in `CPU_S` without requests."""
    with _gateway(program, blocks_per_s, 1) as proxy:
        await asyncio.sleep(1.0)  # the whole cache of the publisher is known, and all imports are over
        before_s = tree_cpu_s(proxy.pid)
        await asyncio.sleep(CPU_S)
        return tree_cpu_s(proxy.pid) - before_s


@contextmanager
def _gateway(program: tuple[str, ...], blocks_per_s: int, processes: int) -> Iterator[Proxy]:
    """Run a gateway, and a publisher unless `blocks_per_s` is 0; yield when all processes serve and events arrive."""
    with tempfile.TemporaryDirectory(prefix="warmroute-bench-") as folder, ExitStack() as stack:
        place = stack.enter_context(standins(1, Path(folder)))
        worker: dict[str, object] = {"url": place.worker_urls[0]}
        settings = {"workers": [worker], "residency": {"self_test": not blocks_per_s}}
        if blocks_per_s:
            port = free_ports(1)
            command = [sys.executable, "-m", "loadtest.bench.publisher", "--port", str(port)]
            command += ["--blocks-per-s", str(blocks_per_s)]
            stack.enter_context(running("publisher", command, port, place.folder))
            worker["kv_events"] = {"endpoint": f"tcp://127.0.0.1:{port}"}
        flags = ("--processes", str(processes))
        proxy, admin_url = stack.enter_context(started("gateway", program, place, settings, *flags))
        until(
            lambda: _settled(admin_url, processes, blocks_per_s > 0),
            lambda: "a process does not serve, or no KV event has reached the gateway",
            START_S,
        )
        yield proxy


def _settled(admin_url: str, processes: int, events: bool) -> bool:
    try:
        ready = httpx.get(f"{admin_url}/readyz").json()
        page = httpx.get(f"{admin_url}/metrics").text
    except httpx.TransportError:
        return False
    arrived = sums(page).get("warmroute_index_blocks", 0.0) > 0
    return ready.get("processes_ready", 1) == processes and (arrived or not events)
