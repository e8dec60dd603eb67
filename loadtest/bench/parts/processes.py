"""Compare one gateway process with two: ``python -m loadtest.bench.parts.processes [cost] [quality] [fleet]``.

cost: CPU time per request of all the gateway's processes, with one process and with two, in turn. The gateway runs the
default policy in front of a stand-in worker. N free cores carry N over this time, so the ratio of capacities is
2 * (one) / (two). Requests per second mean little if the load generator and the worker share the gateway's cores.

quality: two workloads of `loadtest.approximate.workloads` in virtual time, on four modelled 8B workers. One dispatcher
is compared with several, each with its own index and estimates, with the shared ledger and without. Sessions go to the
dispatchers in turn. The figures are means over seeds: cached share, TTFT, and imbalance (the busiest worker over the
mean, in prefill tokens and in requests).

fleet: the same figures from real processes. Each run plays the conversations of ``warmroute demo`` on a new fleet of
embedded workers. On a busy machine these figures are mostly noise.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import uvloop

from loadtest.approximate.workloads import Workload, workloads
from loadtest.bench.bodies import plain_requests
from loadtest.bench.measures.requests import closed_loop
from loadtest.bench.measures.subject import Subject
from loadtest.bench.proxies.entrant import standin
from loadtest.demo import fleet
from loadtest.demo.run import wait_until_ready
from loadtest.drive.conversations import play
from loadtest.fleet.process import Process, warmroute
from loadtest.report.summary import percentile, summarise
from loadtest.sim.clients import Clients
from loadtest.sim.dealt import Dealt
from loadtest.sim.gateway import Delays, SimulatedGateway
from loadtest.sim.outcome import Ending
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker
from loadtest.workload.conversations import Shape, generate
from policies.registry import build_policy
from policies.spec import PolicySpec
from router.process.shared_memory.ledger import Ledger, make_table
from router.residency.residency_map import ResidencyMap

COUNTS = (1, 2)


def cost(rounds: int, window_s: float, connections: int) -> None:
    """Print CPU per request of one and two processes, and the ratio of capacities, round by round."""
    spent: dict[int, list[float]] = {count: [] for count in COUNTS}
    ratios, speeds = [], []
    with TemporaryDirectory() as folder, standin(Path(folder)) as worker:
        for number in range(rounds):
            rates = {}
            for count in COUNTS if number % 2 else reversed(COUNTS):
                spent[count].append(0.0)
                spent[count][-1], rates[count] = one_cost(worker, count, window_s, connections)
            ratios.append(2 * spent[1][-1] / spent[2][-1])
            speeds.append(rates[2] / rates[1])
            print(
                f"round {number + 1}: {spent[1][-1]:.0f} us and {spent[2][-1]:.0f} us per request,"
                f" {rates[1]:.0f} and {rates[2]:.0f} requests/s",
                flush=True,
            )
    for name, values in (("capacity on two cores, two processes over one", ratios), ("requests/s here", speeds)):
        print(f"{name}: median {statistics.median(values):.2f} ({min(values):.2f} - {max(values):.2f})")


def one_cost(worker: int, count: int, window_s: float, connections: int) -> tuple[float, float]:
    """Return CPU microseconds per request, and requests per second."""
    ports = ["--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--log-level", "info"]
    command = warmroute("serve", *ports, "--processes", str(count), "--worker", f"http://127.0.0.1:{worker}")
    gateway = Process(command, "gateway")
    try:
        url = gateway.wait_for(rf"public port.*{fleet.URL}").group(1)
        admin = gateway.wait_for(rf"admin port.*{fleet.URL}").group(1)
        while httpx.get(f"{admin}/readyz").json().get("processes_ready") != count:
            time.sleep(0.05)
        subject = Subject("gateway", url, gateway.pid, f"http://127.0.0.1:{worker}", 0)
        measured = uvloop.run(closed_loop(subject, plain_requests(url, 2_000), connections, window_s))
        assert measured.counts, f"{measured.errors} requests failed: {measured.reasons}"
        return measured.value, measured.rate
    finally:
        gateway.stop()


@dataclass(frozen=True, slots=True)
class Quality:
    """Figures of one run. Imbalances are the busiest worker's value over the mean."""

    cached_share: float
    prefill_imbalance: float
    request_imbalance: float
    ttft_mean_ms: float
    ttft_p99_ms: float


class SharedTime(VirtualTime):
    """Virtual time for several gateways, each of which reads loads for as long as anything is pending.

    The next readings of the other gateways do not count as pending. Otherwise the gateways would keep each other
    reading for ever.
    """

    def __init__(self, gateways: int) -> None:
        super().__init__()
        self._readings = gateways - 1

    @property
    def pending(self) -> int:
        return max(0, super().pending - self._readings)


def simulated(workload: Workload, seed: int, count: int, shared: bool) -> Quality:
    """Play one run in virtual time."""
    time_, delays = SharedTime(count), Delays()
    workers = [
        EngineWorker(time_, f"worker-{number}", spec, seed + number, delays.response_s)
        for number, spec in enumerate(workload.workers)
    ]
    table = make_table(max(count, 2))
    gateways = [
        SimulatedGateway(
            time_,
            workers,
            ResidencyMap(),
            build_policy(PolicySpec(), random.Random(seed + number)),
            PolicySpec(),
            delays=delays,
            ledger=Ledger(table, count, number) if shared and count > 1 else None,
        )
        for number in range(count)
    ]
    clients = Clients(time_, Dealt(gateways), workers, delays.request_s)
    for session in workload.sessions(seed):
        clients.play(session)
    time_.run()
    os.close(table)
    done = [outcome for outcome in clients.outcomes if outcome.ending is Ending.FINISHED]
    names = [worker.name for worker in workers]
    cached = [(one.worker, one.prompt_tokens, one.cached_tokens or 0) for one in done]
    prefilled = [sum(prompt - found for worker, prompt, found in cached if worker == name) for name in names]
    served = [sum(o.worker == name for o in done) for name in names]
    waits_ms = [outcome.ttft_s * 1e3 for outcome in done if outcome.ttft_s is not None]
    return Quality(
        sum(found for _, _, found in cached) / sum(prompt for _, prompt, _ in cached),
        max(prefilled) / statistics.mean(prefilled),
        max(served) / statistics.mean(served),
        statistics.mean(waits_ms),
        percentile(waits_ms, 0.99),
    )


def quality(seeds: int) -> None:
    """Print the means for each number of processes, with the ledger shared and without."""
    for workload in workloads(None):
        if workload.name == "drift":
            continue
        print(f"{workload.name}: {workload.about}; {seeds} seeds")
        for count, shared in ((1, False), (2, True), (4, True), (8, True), (2, False), (8, False)):
            runs = [simulated(workload, seed, count, shared) for seed in range(seeds)]
            ledger = "" if count == 1 else ", one ledger" if shared else ", no ledger"
            print(f"  {count} process(es){ledger:12}  {line(runs, statistics.mean)}", flush=True)


def real_quality(rounds: int, workers: int, conversations: int) -> None:
    """Print each figure for one and two processes, round by round, and their medians."""
    found: dict[int, list[Quality]] = {count: [] for count in COUNTS}
    for number in range(rounds):
        for count in COUNTS if number % 2 else reversed(COUNTS):
            found[count].append(one_quality(count, workers, Shape(conversations=conversations), number))
            print(f"round {number + 1}, {count} process(es): {line(found[count][-1:])}", flush=True)
    for count in COUNTS:
        print(f"median, {count} process(es): {line(found[count])}")


def line(runs: list[Quality], middle: Callable[[list[float]], float] = statistics.median) -> str:
    """Return the runs' figures in one line, each by its median or another middle."""

    def of(field: str) -> float:
        return middle([getattr(run, field) for run in runs])

    return (
        f"cached {of('cached_share'):.3f}  busiest over mean: prefill {of('prefill_imbalance'):.2f},"
        f" requests {of('request_imbalance'):.2f}"
        f"  TTFT mean {of('ttft_mean_ms'):.1f} ms, p99 {of('ttft_p99_ms'):.0f} ms"
    )


def one_quality(count: int, workers: int, shape: Shape, seed: int) -> Quality:
    """Start a fresh fleet, play the conversations once and return the figures."""
    flags = ("--time-scale", "3")
    with fleet.running(workers, "marginal_cost", flags, ("--processes", str(count))) as running:
        model = wait_until_ready(running.admin_url, workers)
        while httpx.get(f"{running.admin_url}/readyz").json().get("processes_ready") != count:
            time.sleep(0.05)
        time.sleep(1.0)  # time for the self-tests
        before = [worker_tokens(url) for url in running.worker_urls]
        timings = uvloop.run(play(running.public_url, model, generate(shape, seed)))
        row = summarise("", timings)
        assert row.errors == 0, f"{row.errors} requests failed"
        prefilled = [worker_tokens(url) - tokens for url, tokens in zip(running.worker_urls, before, strict=True)]
        served = list(by_worker(running.admin_url).values())
    return Quality(
        row.cached_share,
        max(prefilled) / statistics.mean(prefilled),
        max(served) / (sum(served) / workers),
        row.ttft_mean_ms,
        row.ttft_p99_ms,
    )


def worker_tokens(url: str) -> float:
    """Return the number of prompt tokens that a worker has looked up and not found in its cache."""
    page = httpx.get(f"{url}/metrics").text
    return sample_sum(page, "vllm:prefix_cache_queries_total") - sample_sum(page, "vllm:prefix_cache_hits_total")


def sample_sum(page: str, name: str) -> float:
    """Return the sum of a metric's samples."""
    return sum(float(text.rsplit(" ", 1)[1]) for text in page.splitlines() if text.startswith((name + "{", name + " ")))


def by_worker(admin_url: str) -> dict[str, float]:
    """Return the number of requests placed on each worker."""
    served: dict[str, float] = {}
    for text in httpx.get(f"{admin_url}/metrics").text.splitlines():
        if text.startswith("warmroute_decisions_total{"):
            worker = text.split('worker="')[1].split('"')[0]
            served[worker] = served.get(worker, 0.0) + float(text.rsplit(" ", 1)[1])
    return served


def main() -> None:
    """Run the parts named on the command line, or cost and quality."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=["cost", "quality", "fleet", []], default=["cost", "quality"])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window-s", type=float, default=2.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--conversations", type=int, default=24)
    args = parser.parse_args()
    if "cost" in args.parts:
        cost(args.rounds, args.window_s, args.connections)
    if "quality" in args.parts:
        quality(args.seeds)
    if "fleet" in args.parts:
        real_quality(args.rounds, args.workers, args.conversations)


if __name__ == "__main__":
    main()
