"""One soak from start to verdict."""

from __future__ import annotations

import asyncio
import contextlib
import math
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx
from rich.console import Console

from loadtest.drive.seen import Kind, Seen
from loadtest.soak.attack.attacker import Attack
from loadtest.soak.faults import Breaker
from loadtest.soak.fleet import Admin, Fleet, FleetShape
from loadtest.soak.gauges import Gauges, Rest, growth_bytes, left_over, slope_bytes_per_s
from loadtest.soak.judgement import needs_attempts, unexplained
from loadtest.soak.report import Verdict
from loadtest.soak.traffic import Manner, Mix, Traffic

_MB = 1e6
READY_LIMIT_S = 60.0
CALIBRATION_CLIENTS = 48
HALF = 0.5
QUARTER = 0.25
"""Share of the highest rate with an attacker, which uses the cores of workers and clients, too."""
END_LIMIT_S = 60.0
"""Limit for requests to end after the last one has begun. It is longer than any single limit of the gateway."""
REST_LIMIT_S = 30.0
SPARE_DESCRIPTORS = 6
"""Tolerated descriptors at rest, because a probe's connection or a new event link may be open or not."""
SPARE_TASKS = 6
SAMPLE_S = 1.0
QUIET = 0.2
"""Share of the time before the attacker begins. The rest is compared with it."""
UNHARMED = frozenset({Kind.COMPLETE, Kind.LEFT})
"""Ends of a request that are no failure."""
SHOWN = 20
"""Number of unexplained errors that are printed in full."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a run.

    If `requests_per_s` is None, the rate is half of the highest one, found in `calibrate_s`.
    """

    duration_s: float
    fleet: FleetShape = field(default_factory=FleetShape)
    mix: Mix = field(default_factory=Mix)
    seed: int = 0
    fault_every_s: float | None = 5.0
    """Mean time between faults; None disables them."""
    faults_at_once: int = 2
    requests_per_s: float | None = None
    calibrate_s: float = 15.0
    progress_s: float = 10.0
    growth_bound_mb: float = 8.0
    attack: bool = False
    """Add a hostile client."""


class Soak:
    """One run, which fills `verdict`."""

    def __init__(self, setting: Setting, fleet: Fleet, console: Console) -> None:
        self._setting = setting
        self._fleet = fleet
        self._console = console
        self._admin = Admin(fleet.admin_url)
        self._gauges = Gauges(fleet.gateway.pid)
        every_s = setting.fault_every_s if setting.fault_every_s is not None else math.inf
        self._breaker = Breaker(fleet, self._admin, Random(setting.seed), every_s, setting.faults_at_once)
        self._first_byte_s: list[float] = []
        self._first_byte_attacked_s: list[float] = []
        self._attack: Attack | None = None
        self._outcomes: Counter[str] = Counter()
        self._judging: set[asyncio.Task[None]] = set()
        self.verdict = Verdict(setting.seed, setting.duration_s, setting.requests_per_s or 0.0, None)

    async def run(self) -> Verdict:
        verdict, workers = self.verdict, [worker.id for worker in self._fleet.workers]
        if not await self._admin.until_ready(workers, READY_LIMIT_S):
            verdict.failures.append(f"the workers were not ready within {READY_LIMIT_S:.0f} s")
            return verdict
        model = str((await self._admin.workers())[0]["models"][0]["id"])
        traffic = Traffic(self._fleet.url, model, self._setting.seed, self._setting.mix, self._saw)
        await self._choose_rate(traffic)
        before = await self._rest(None)
        self._first_byte_s.clear()  # those of the calibration do not count
        with contextlib.ExitStack() as stack:
            await self._break_and_watch(traffic, stack)
        cut_off = await traffic.stop(END_LIMIT_S)
        if cut_off:
            verdict.failures.append(f"{cut_off} requests had not ended {END_LIMIT_S:.0f} s after the last began")
        if self._judging:
            await asyncio.wait(list(self._judging))
        after = await self._rest(before)
        self._conclude(before, after)
        await self._admin.aclose()
        return verdict

    async def _choose_rate(self, traffic: Traffic) -> None:
        """Find the rate.

        This also fills the gateway's caches and logs, so that later measurements start from a steady state.
        """
        setting, verdict = self._setting, self.verdict
        highest = await traffic.calibrate(CALIBRATION_CLIENTS, setting.calibrate_s)
        verdict.highest_requests_per_s = highest
        verdict.requests_per_s = setting.requests_per_s or highest * (QUARTER if setting.attack else HALF)
        self._console.print(
            f"{highest:.1f} requests/s at most; going on with {verdict.requests_per_s:.1f}/s for "
            f"{setting.duration_s / 60:g} min, seed {setting.seed}",
            highlight=False,
        )

    @contextlib.contextmanager
    def _attacked(self) -> Iterator[None]:
        """Run a hostile client for the length of a ``with``."""
        self._attack = Attack(self._fleet.url.removeprefix("http://"), self._setting.seed)
        with self._attack as attack:
            yield
        verdict = self.verdict
        verdict.attacks, verdict.attacker_requests = dict(attack.counts), dict(attack.requests)
        verdict.failures += attack.troubles

    async def _break_and_watch(self, traffic: Traffic, stack: contextlib.ExitStack) -> None:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(traffic.run(self.verdict.requests_per_s))]
        if self._setting.fault_every_s is not None:
            tasks.append(loop.create_task(self._breaker.run()))
        began_s = loop.time()
        shown_s = began_s
        while (now_s := loop.time()) < began_s + self._setting.duration_s and self._fleet.gateway.alive:
            self._gauges.sample(now_s)
            if self._setting.attack and self._attack is None and now_s >= began_s + self._setting.duration_s * QUIET:
                stack.enter_context(self._attacked())
            if now_s - shown_s >= self._setting.progress_s:
                shown_s = now_s
                with contextlib.suppress(httpx.HTTPError):  # a gateway that has died is reported below
                    self._gauges.blocks.append((await self._admin.metrics())["warmroute_allocated_blocks"])
                self._show(now_s - began_s, len(traffic.running))
            await asyncio.sleep(SAMPLE_S)
        self._gauges.sample(loop.time())
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._breaker.heal()

    def _show(self, elapsed_s: float, conversations: int) -> None:
        counts, faults = self._outcomes, self._breaker.log
        errors = sum(counts[kind] for kind in counts if kind not in UNHARMED)
        self._console.print(
            f"{elapsed_s:6.0f} s  {counts.total():7,} requests  {counts[Kind.COMPLETE]:7,} whole  "
            f"{counts[Kind.LEFT]:5,} left  {errors:4,} errors, {len(self.verdict.unexplained)} unexplained  "
            f"{len(faults.windows):4} faults  {conversations:3} conversations  "
            f"RSS {self._gauges.samples[-1].rss_bytes / _MB:4.0f} MB  {self._gauges.descriptors:4} files",
            highlight=False,
        )

    # Clients.

    def _saw(self, seen: Seen, manner: Manner) -> None:
        name = str(seen.kind) if not seen.code else f"{seen.kind}: {seen.code}"
        self.verdict.outcomes[name] = self.verdict.outcomes.get(name, 0) + 1
        self._outcomes[seen.kind] += 1
        if seen.first_s is not None and seen.kind is Kind.COMPLETE:
            waits_s = self._first_byte_s if self._attack is None else self._first_byte_attacked_s
            waits_s.append(seen.first_s - seen.began_s)
        if seen.kind not in UNHARMED:
            task = asyncio.get_running_loop().create_task(self._judge(seen, manner))
            self._judging.add(task)
            task.add_done_callback(self._judging.discard)

    async def _judge(self, seen: Seen, manner: Manner) -> None:
        try:
            attempts = await self._admin.decisions(seen.request_id) if needs_attempts(seen) else []
        except Exception as error:
            attempts = []
            self.verdict.failures.append(f"the admin port did not answer: {type(error).__name__}: {error}")
        workers = [worker.id for worker in self._fleet.workers]
        wrong = unexplained(seen, attempts, self._breaker.log, workers)
        if wrong is not None:
            story = [f"{each['worker']} {each['outcome']}" for each in attempts]
            self.verdict.unexplained.append(
                f"{seen.kind} {seen.status} {seen.code} from {seen.worker or 'nobody'} after "
                f"{seen.ended_s - seen.began_s:.1f} s: {wrong}; {seen.detail}; attempts {story}; {manner}"
            )

    # End of the run.

    async def _rest(self, before: Rest | None) -> Rest:
        """Wait until nothing is reserved or open any more, or until the time limit."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + REST_LIMIT_S
        while True:
            metrics = await self._admin.metrics()
            found = left_over(await self._admin.workers(), metrics)
            rest = Rest(self._gauges.descriptors, int(metrics["warmroute_tasks"]))
            settled = metrics["warmroute_worker_connections"] == 0 and not found
            if settled and (before is None or _no_more(rest, before)):
                return rest
            if loop.time() > end_s:
                self.verdict.failures += found
                return rest
            await asyncio.sleep(0.2)

    def _conclude(self, before: Rest, after: Rest) -> None:
        verdict, samples = self.verdict, self._gauges.samples
        verdict.requests = self._outcomes.total()
        verdict.failed_requests = sum(self._outcomes[kind] for kind in self._outcomes if kind not in UNHARMED)
        verdict.first_byte_ms = first_byte_ms(self._first_byte_s)
        verdict.first_byte_attacked_ms = first_byte_ms(self._first_byte_attacked_s)
        verdict.peak_rss_mb = self._gauges.peak_rss_bytes / _MB
        if self._fleet.group is not None:
            verdict.memory_limit_mb = self._fleet.group.limit_bytes / _MB
        verdict.faults = self._breaker.log.counts()
        verdict.lost_batches = sum(self._fleet.relays.statistics()["dropped"])
        middle = samples[len(samples) // 2]
        verdict.rss_mb = (samples[0].rss_bytes / _MB, middle.rss_bytes / _MB, samples[-1].rss_bytes / _MB)
        if blocks := self._gauges.blocks:
            verdict.allocated_blocks = (int(blocks[0]), int(blocks[len(blocks) // 2]), int(blocks[-1]))
        verdict.rss_slope_mb_per_min = slope_bytes_per_s(samples) * 60 / _MB
        verdict.rss_growth_mb = growth_bytes(samples) / _MB
        verdict.rss_growth_bound_mb = self._setting.growth_bound_mb
        verdict.descriptors, verdict.tasks = (before.descriptors, after.descriptors), (before.tasks, after.tasks)
        verdict.cpu_s = self._gauges.cpu_s
        verdict.failures += self._breaker.troubles
        if verdict.unexplained:
            verdict.failures.append(f"{len(verdict.unexplained)} errors that no fault explains")
            del verdict.unexplained[SHOWN:]
        if verdict.rss_growth_mb > self._setting.growth_bound_mb:
            verdict.failures.append(f"memory grew by {verdict.rss_growth_mb:.1f} MB in the second half")
        if not _no_more(after, before):
            verdict.failures.append(f"left open at rest: {before} before, {after} after")
        if not verdict.outcomes.get(Kind.COMPLETE):
            verdict.failures.append("no request was answered")


def first_byte_ms(waits_s: Sequence[float]) -> tuple[float, float, float]:
    """Return median, 99th percentile and maximum in milliseconds; zeros if there are no waits."""
    ordered = sorted(waits_s) or [0.0]
    return tuple(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3 for share in (0.5, 0.99, 1.0))  # type: ignore[return-value]


def _no_more(after: Rest, before: Rest) -> bool:
    return after.descriptors <= before.descriptors + SPARE_DESCRIPTORS and after.tasks <= before.tasks + SPARE_TASKS


def soak(setting: Setting, console: Console) -> Verdict:
    """Start a fleet, soak it, stop it.

    Raises:
        StartError: a process did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="warmroute-soak-") as folder, Fleet(setting.fleet, Path(folder)) as fleet:
        console.print(f"{len(fleet.workers)} workers, gateway {fleet.url}, admin {fleet.admin_url}", highlight=False)

        async def main() -> Verdict:
            return await Soak(setting, fleet, console).run()

        verdict = asyncio.run(main())
        if fleet.group is not None and fleet.group.kills:
            verdict.failures.append(f"the kernel ended the gateway at its limit of {fleet.group.limit_bytes:,} bytes")
        if not fleet.gateway.alive:
            verdict.failures.append(str(fleet.gateway.ended()))
        return verdict
