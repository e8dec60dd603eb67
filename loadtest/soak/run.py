"""One soak from start to verdict."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import httpx
from rich.console import Console

from loadtest.fleet.process import StartError
from loadtest.load.seen import Kind, Seen
from loadtest.report.summary import percentile
from loadtest.soak.attack.attacker import Attack
from loadtest.soak.faults import Breaker
from loadtest.soak.fleet import Admin, Fleet, FleetShape
from loadtest.soak.gauges import Gauges, Rest, growth_bytes, left_over
from loadtest.soak.judgement import needs_attempts, unexplained
from loadtest.soak.report import Verdict
from loadtest.soak.restarts import Restarts
from loadtest.soak.traffic import Manner, Traffic

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
PROGRESS_S = 10.0
GROWTH_MB = 8.0
"""Allowed growth of the gateway's memory in the second half."""
ATTACKED_GROWTH_MB = 100.0
"""The same with an attacker: an attack may leave memory in use for a minute."""
SHOWN = 20
"""Number of unexplained errors that are printed in full."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a run.

    The rate is a share of the highest one, found in `calibrate_s`. With `restarts`, that many processes are replaced
    under the load of `clients`, and there is no rate and no duration.
    """

    duration_s: float
    fleet: FleetShape
    faults: bool = False
    calibrate_s: float = 15.0
    restarts: int = 0
    clients: int = 12


class Soak:
    """One run, which fills `verdict`."""

    def __init__(self, setting: Setting, fleet: Fleet, console: Console) -> None:
        self._setting = setting
        self._fleet = fleet
        self._console = console
        self._admin = Admin(fleet.admin_url)
        self._gauges = Gauges(fleet.gateway.pid)
        self._breaker = Breaker(fleet, self._admin, Random(setting.fleet.seed))
        by_takeover = setting.restarts - setting.restarts // 2
        self._restarts = Restarts(fleet, self._admin, by_takeover, setting.restarts // 2)
        self._first_byte_s: list[float] = []
        self._judging: set[asyncio.Task[None]] = set()
        self.verdict = Verdict(setting.fleet.seed, setting.duration_s)

    async def run(self) -> Verdict:
        verdict, workers = self.verdict, [worker.id for worker in self._fleet.workers]
        if not await self._admin.until_ready(workers, READY_LIMIT_S):
            verdict.failures.append(f"the workers were not ready within {READY_LIMIT_S:.0f} s")
            return verdict
        model = str((await self._admin.workers())[0]["models"][0]["id"])
        traffic = Traffic(
            self._fleet.url,
            model,
            self._setting.fleet.seed,
            self._saw,
            [*self._setting.fleet.config.get("classes", ())],
        )
        before = None
        if self._setting.restarts:
            await self._restart(traffic)
        else:
            await self._choose_rate(traffic)
            before = await self._rest(None)
            self._first_byte_s.clear()  # those of the calibration do not count
            await self._break_and_watch(traffic)
        cut_off = await traffic.stop(END_LIMIT_S)
        if cut_off:
            verdict.failures.append(f"{cut_off} clients had not ended {END_LIMIT_S:.0f} s after the last began")
        if self._judging:
            await asyncio.wait(list(self._judging))
        self._conclude(before, await self._rest(before))
        await self._admin.aclose()
        return verdict

    async def _restart(self, traffic: Traffic) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        busy = loop.create_task(traffic.keep_busy(self._setting.clients))
        work = loop.create_task(self._restarts.run())
        while not work.done():
            self._gauges = Gauges(self._fleet.gateway.pid)
            self._show(loop.time() - began_s, len(traffic.running))
            await asyncio.wait([work], timeout=PROGRESS_S)
        if busy.done():
            busy.result()
        try:
            await work
        except* (StartError, httpx.HTTPError) as errors:
            self.verdict.failures += [f"{type(error).__name__}: {error}" for error in errors.exceptions]
        self._gauges = Gauges(self._fleet.gateway.pid)
        self.verdict.duration_s = loop.time() - began_s

    async def _choose_rate(self, traffic: Traffic) -> None:
        """Find the rate.

        This also fills the gateway's caches and logs, so that later measurements start from a steady state.
        """
        setting, verdict = self._setting, self.verdict
        minutes = setting.duration_s / 60
        verdict.highest_requests_per_s = await traffic.keep_busy(CALIBRATION_CLIENTS, setting.calibrate_s)
        share = QUARTER if setting.fleet.attacked else HALF
        verdict.requests_per_s = verdict.highest_requests_per_s * share
        self._say(
            f"{verdict.highest_requests_per_s:.1f} requests/s at most; going on with "
            f"{verdict.requests_per_s:.1f}/s for {minutes:g} min, seed {verdict.seed}"
        )

    async def _break_and_watch(self, traffic: Traffic) -> None:
        verdict, attack = self.verdict, Attack(self._fleet.url.removeprefix("http://"), self._setting.fleet.seed)
        with attack if self._setting.fleet.attacked else contextlib.nullcontext():
            await self._watch(traffic)
        if self._setting.fleet.attacked:
            verdict.attacks, verdict.attacker_requests = dict(attack.counts), dict(attack.requests)
            verdict.failures += attack.troubles

    async def _watch(self, traffic: Traffic) -> None:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(traffic.run(self.verdict.requests_per_s))]
        if self._setting.faults:
            tasks.append(loop.create_task(self._breaker.run()))
        began_s = shown_s = loop.time()
        while (now_s := loop.time()) < began_s + self._setting.duration_s and self._fleet.gateway.alive:
            self._gauges.sample(now_s)
            if now_s - shown_s >= PROGRESS_S:
                shown_s = now_s
                self._show(now_s - began_s, len(traffic.running))
            await asyncio.sleep(SAMPLE_S)
        self._gauges.sample(loop.time())
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._breaker.heal()

    def _show(self, elapsed_s: float, conversations: int) -> None:
        verdict, counts = self.verdict, self.verdict.outcomes
        self._say(
            f"{elapsed_s:6.0f} s  {verdict.requests:7,} requests  {counts[Kind.COMPLETE]:7,} whole  "
            f"{counts[Kind.LEFT]:5,} left  {verdict.failed_requests:4,} errors, "
            f"{len(verdict.unexplained)} unexplained  {sum(self._faults().values()):4} faults  "
            f"{conversations:3} conversations  RSS {self._gauges.rss_bytes / _MB:4.0f} MB  "
            f"{self._gauges.descriptors:4} files"
        )

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False)

    def _faults(self) -> dict[str, int]:
        return self._restarts.counts if self._setting.restarts else self._breaker.log.counts()

    # Clients.

    def _saw(self, seen: Seen, manner: Manner) -> None:
        name = str(seen.kind) if not seen.code else f"{seen.kind}: {seen.code}"
        self.verdict.outcomes[name] += 1
        if seen.first_s is not None and seen.kind is Kind.COMPLETE:
            self._first_byte_s.append(seen.first_s - seen.began_s)
        if seen.kind not in (Kind.COMPLETE, Kind.LEFT):
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

    def _conclude(self, before: Rest | None, after: Rest) -> None:
        verdict = self.verdict
        p50_ms, p99_ms, most_ms = (percentile(self._first_byte_s, share) * 1e3 for share in (0.5, 0.99, 1.0))
        verdict.first_byte_ms = p50_ms, p99_ms, most_ms
        verdict.faults = self._faults()
        verdict.failures += self._breaker.troubles
        if verdict.unexplained:
            verdict.failures.append(f"{len(verdict.unexplained)} errors that no fault explains")
            del verdict.unexplained[SHOWN:]
        if not verdict.outcomes[Kind.COMPLETE]:
            verdict.failures.append("no request was answered")
        if before is not None:
            self._conclude_gauges(before, after)

    def _conclude_gauges(self, before: Rest, after: Rest) -> None:
        verdict, samples = self.verdict, self._gauges.samples
        verdict.peak_rss_mb = self._gauges.peak_rss_bytes / _MB
        if self._fleet.group is not None:
            verdict.memory_limit_mb = self._fleet.group.limit_bytes / _MB
        first, middle, last = (each.rss_bytes / _MB for each in (samples[0], samples[len(samples) // 2], samples[-1]))
        verdict.rss_mb = (first, middle, last)
        verdict.rss_growth_mb = growth_bytes(samples) / _MB
        verdict.rss_growth_bound_mb = ATTACKED_GROWTH_MB if self._setting.fleet.attacked else GROWTH_MB
        verdict.descriptors, verdict.tasks = (before.descriptors, after.descriptors), (before.tasks, after.tasks)
        if verdict.rss_growth_mb > verdict.rss_growth_bound_mb:
            verdict.failures.append(f"memory grew by {verdict.rss_growth_mb:.1f} MB in the second half")
        if not _no_more(after, before):
            verdict.failures.append(f"left open at rest: {before} before, {after} after")


def _no_more(after: Rest, before: Rest) -> bool:
    return after.descriptors <= before.descriptors + SPARE_DESCRIPTORS and after.tasks <= before.tasks + SPARE_TASKS


def soak(setting: Setting, console: Console) -> Verdict:
    """Start a fleet, soak it, stop it.

    Raises:
        StartError: a process did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="warmroute-soak-") as folder:
        shape = setting.fleet
        if setting.restarts:
            shape = replace(shape, config={"takeover": f"{folder}/takeover.sock"})
        with Fleet(shape, Path(folder)) as fleet:
            console.print(
                f"{len(fleet.workers)} workers, gateway {fleet.url}, admin {fleet.admin_url}", highlight=False
            )

            async def main() -> Verdict:
                return await Soak(setting, fleet, console).run()

            verdict = asyncio.run(main())
            if fleet.group is not None and fleet.group.kills:
                limit = f"{fleet.group.limit_bytes:,} bytes"
                verdict.failures.append(f"the kernel ended the gateway at its limit of {limit}")
            if not fleet.gateway.alive:
                verdict.failures.append(str(fleet.gateway.ended()))
            elif setting.restarts:
                fleet.gateway.terminate()
                fleet.end(fleet.gateway)
            return verdict
