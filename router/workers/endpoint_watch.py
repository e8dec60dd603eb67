from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from backends.vllm.control import ProbeError, ProbeFault, WorkerClient
from backends.vllm.metrics import MetricsPage
from backends.vllm.operations import WorkerOperation, operate
from backends.vllm.probe import learn, read_metrics
from backends.vllm.server_info import read_connector
from backends.worker import ConnectorFacts, KvEventSource, LoadReport, WorkerFacts
from router.placement.fleet.fleet import FleetEndpoint, WorkerState
from router.placement.fleet.lateness import probe_late
from router.tokenization.remote_tokenizer import tokenize_url
from router.workers.health_question import HealthQuestion
from router.workers.selftests import SelfTests
from router.workers.subscriptions import Subscriptions
from router.workers.watch_context import WatchContext

FULL_PROBE_S = 30.0
"""Interval of full probes. They find changes that no event or load report shows, such as a loaded LoRA adapter."""

MIN_GAP_S = 0.2
"""Minimum time between two probes, so that a flapping link does not cause a flood of them."""

log = logging.getLogger("warmroute.workers")


class EndpointWatch:
    """Follow one endpoint until it is closed or leaves the fleet."""

    def __init__(
        self,
        context: WatchContext,
        endpoint: FleetEndpoint,
        events: KvEventSource | None = None,
        api_key: str | None = None,
    ) -> None:
        self._context = context
        self._endpoint = endpoint
        self._events = events
        self._facts: WorkerFacts | None = None
        self._connector: ConnectorFacts | None = None
        self._connector_asked = False
        """This process of the worker has said what its KV connector is, or that it does not say."""
        self._page: MetricsPage | None = None
        self._up = False
        self._late = False
        """The last probe timed out, and the worker is not ejected."""
        self._load_failing = False
        self._full_due_s = 0.0
        self._probe_due_s = 0.0
        self._load_due_s = 0.0
        self._probed_s = -math.inf
        self._woken = asyncio.Event()
        self._subscriptions = Subscriptions(context, self.look_again)
        self._client = WorkerClient(api_key, context.worker_tls.context_for, via=context.via)
        self._question = HealthQuestion(self._client, endpoint.endpoint, context.config.health.probe_timeout_s)
        self._self_tests = SelfTests(context, self._client, endpoint, self._subscriptions)
        self._workers: set[str] = set()
        self._logged: tuple[WorkerState, bool] | None = None
        self._kept = False
        self._restarts = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"watch {self._endpoint.id}")

    def close(self) -> asyncio.Task[None] | None:
        """Stop. Event sockets are closed when this returns; everything else is closed when the returned task has
        ended.
        """
        self._release()
        if self._task is not None:
            self._task.cancel()
        return self._task

    def probe_later(self, delay_s: float) -> None:
        self._probe_due_s = self._context.clock() + delay_s

    def look_again(self) -> None:
        """Probe everything soon, because something about the worker may have changed. A first probe keeps its time."""
        if self._probed_s == -math.inf:
            return
        self._full_due_s = 0.0
        self._probe_due_s = min(self._probe_due_s, self._probed_s + MIN_GAP_S)
        self._woken.set()

    async def operate(self, wanted: WorkerOperation) -> None:
        """Carry out an operation on the worker; raises what `backends.vllm.operations.operate` raises."""
        await operate(self._client, self._endpoint.endpoint, wanted)

    def look_for_process(self) -> None:
        """Check soon whether the same process still answers."""
        self._load_due_s = 0.0
        self.look_again()

    def test_again(self, models: Collection[str]) -> None:
        """Repeat the self-test soon if the worker serves one of `models`."""
        if self._facts is not None and any(card.id in models for card in self._facts.models):
            self._self_tests.renew()
            self.look_again()

    def statistics(self) -> dict[str, Any]:
        return {
            "up": self._up,
            "restarts": self._restarts,
            "self_tests": self._self_tests.statistics(),
            "subscriptions": self._subscriptions.statistics(),
        }

    # the loop

    async def _run(self) -> None:
        try:
            while self._context.fleet.get(self._endpoint.id) is self._endpoint:
                await self._guarded_round()
                await self._pause(min(self._probe_due_s, self._load_due_s) if self._up else self._probe_due_s)
        finally:
            self._release()
            self._question.close()
            await self._self_tests.ended()
            # A cancelled request can leave its connection in the pool, so each endpoint has its own client.
            await self._client.aclose()

    def _release(self) -> None:
        self._subscriptions.close()
        self._self_tests.cancel()
        while self._workers:
            self._context.metrics.registry.forget("worker", self._workers.pop())

    async def _guarded_round(self) -> None:
        try:
            await self._round(self._context.clock())
        except Exception:
            # An unexpected answer of one endpoint must not end its watch, and must be logged.
            log.exception("watch round failed", extra={"worker": self._endpoint.id})
            self._probe_due_s = self._context.clock() + self._context.config.health.probe_interval_s

    async def _pause(self, until_s: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, until_s - self._context.clock())):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def _round(self, now_s: float) -> None:
        self._woken.clear()
        if self._late:  # a counter that moves meanwhile excuses the next late probe
            async with asyncio.TaskGroup() as group:
                group.create_task(self._load_round(now_s))
                group.create_task(self._probe_round(now_s))
        else:
            await self._probe_round(now_s)
            await self._load_round(now_s)

    async def _probe_round(self, now_s: float) -> None:
        if now_s >= self._probe_due_s:
            self._probed_s = now_s
            self._probe_due_s = now_s + self._context.config.health.probe_interval_s
            await self._probe(now_s)

    async def _load_round(self, now_s: float) -> None:
        if self._up and now_s >= self._load_due_s:
            self._load_due_s = now_s + self._context.config.health.probe_interval_s
            await self._read_load()
            if self._facts is not None and not self._late:
                self._self_tests.consider(self._facts)

    # probes

    async def _probe(self, now_s: float) -> None:
        full = self._facts is None or not self._up or now_s >= self._full_due_s
        kind = "full" if full else "quick"
        if full:
            self._full_due_s = now_s + FULL_PROBE_S  # before it, so that `look_again` meanwhile is not lost
        facts = None
        try:
            await self._question.ask()
            if full:
                facts = await self._learn()
            self._check_engine()
        except ProbeError as error:
            self._context.metrics.probes.add(1.0, (kind, "failed"))
            self._failed(error, now_s)
            return
        self._context.metrics.probes.add(1.0, (kind, "ok"))
        if facts is not None:
            self._log_facts(facts)
            if self._context.observer is not None:
                facts = self._context.observer.learned(self._endpoint.endpoint, facts)
            self._facts = facts
        assert self._facts is not None
        self._up, self._late = True, False
        self._context.fleet.probe_succeeded(self._endpoint.id, self._facts, self._context.clock())
        self._log_state()
        if facts is not None:
            self._learned(facts)

    async def _learn(self) -> WorkerFacts | None:
        """Return the facts of a worker that has answered `/health`.

        None if the answer is late, and the facts before are those of the same process as far as is known.
        """
        timeout_s = self._context.config.health.probe_timeout_s
        try:
            facts = await learn(self._client, self._endpoint.endpoint, events=self._events, timeout_s=timeout_s)
        except ProbeError as error:
            same = self._up or self._endpoint.health.silent_since_s is not None
            if error.fault is ProbeFault.LATE and self._facts is not None and same:
                self._full_due_s = 0.0
                return None
            raise
        return replace(facts, connector=await self._connector_of(timeout_s))

    async def _connector_of(self, timeout_s: float) -> ConnectorFacts | None:
        """Return what the worker says about its KV connector. It is asked until it has answered: vLLM without its
        development mode logs each question."""
        if self._context.config.handover.connector is not None and not self._connector_asked:
            try:
                self._connector = await read_connector(self._client, self._endpoint.endpoint, timeout_s)
                self._connector_asked = True
            except ProbeError:
                self._connector = None
        return self._connector

    def _check_engine(self) -> None:
        """Raise `ProbeError` if the engine behind a healthy server hangs."""
        fault = self._context.observer.fault() if self._context.observer is not None else None
        if fault is not None:
            raise ProbeError(fault)

    def _log_facts(self, facts: WorkerFacts) -> None:
        if facts != self._facts:
            fields = {
                "worker": self._endpoint.id,
                "version": facts.version,
                "models": ",".join(card.id for card in facts.models),
                "ranks": facts.ranks,
                "kv_events": len(facts.event_sources),
                "notes": "; ".join(facts.notes),
            }
            log.info("worker found", extra=fields)

    def _failed(self, error: ProbeError, began_s: float) -> None:
        context, endpoint, now_s = self._context, self._endpoint, self._context.clock()
        if error.fault is ProbeFault.LATE:
            verdict = probe_late(context.fleet, context.config.health, endpoint, error.reason, began_s, now_s)
            context.metrics.late_probes.add(1.0, (verdict,))
            self._late = self._up and not context.fleet.lost(endpoint)
        else:
            self._late = False
            if error.fault is ProbeFault.REFUSED:
                context.fleet.refused(endpoint.id, now_s)
            elif error.fault is ProbeFault.BROKEN:
                endpoint.evidence.reset(now_s)
            context.fleet.probe_failed(endpoint.id, error.reason, now_s)
        if not self._late:
            self._up = self._connector_asked = False
        log.debug("probe failed", extra={"worker": endpoint.id, "reason": error.reason})
        self._log_state()

    def _log_state(self) -> None:
        """Log each change of state once. Further failing probes are only counted."""
        self._log_panic()
        state = self._endpoint.state
        if (state, self._up) != self._logged:
            quiet = self._logged is not None and self._logged[0] is state and state is WorkerState.READY
            self._logged = (state, self._up)
            level = logging.INFO if state in (WorkerState.READY, WorkerState.DRAINING) else logging.WARNING
            fields = {"worker": self._endpoint.id, "state": state.value, "reason": self._endpoint.reason}
            log.log(logging.DEBUG if quiet else level, "worker state", extra=fields)

    def _log_panic(self) -> None:
        """Log once that time-outs do not eject the worker, because too few would be left; and the end of it."""
        kept = self._endpoint.health.kept_since_s is not None
        if kept is not self._kept:
            self._kept = kept
            fields = {"worker": self._endpoint.id, "models": ",".join(self._endpoint.models)}
            if kept:
                log.warning("worker kept in spite of time-outs: too few others are left", extra=fields)
            else:
                log.info("worker no longer kept in spite of time-outs", extra=fields)

    def _learned(self, facts: WorkerFacts) -> None:
        endpoint = self._endpoint.endpoint
        for card in facts.models:
            self._context.identity.sources.learn(
                card.id, card.root, tokenize_url(endpoint), card.parent, card.max_model_len
            )
        self._workers.update(candidate.id for candidate in self._endpoint.candidates)
        self._subscriptions.fit(self._endpoint.candidates, facts.event_sources)
        self._self_tests.consider(facts)

    # loads

    async def _read_load(self) -> None:
        asked_s = self._context.clock()
        try:
            page = await read_metrics(
                self._client, self._endpoint.endpoint, timeout_s=self._context.config.health.probe_timeout_s
            )
        except ProbeError as error:
            self._context.metrics.probes.add(1.0, ("load", "failed"))
            if not self._load_failing:
                log.warning("no load reports", extra={"worker": self._endpoint.id, "reason": error.reason})
            self._load_failing = True
            return
        self._load_failing = False
        self._context.metrics.probes.add(1.0, ("load", "ok"))
        if self._context.observer is not None:
            self._context.observer.load_read(page)
        now_s = self._context.clock()
        for report in page.loads:
            self._context.fleet.load_reported(self._endpoint.id, report, now_s)
        self._compare(page, asked_s)

    def _compare(self, page: MetricsPage, asked_s: float) -> None:
        """Detect another process, sleep mode, or a cache whose size was unknown."""
        before, self._page = self._page, page
        if before is not None and (page.started_s != before.started_s or _fell(before.loads, page.loads)):
            self._restarted()
            return
        if before is not None and page.started_s is not None:
            self._context.fleet.continues(self._endpoint.id, asked_s)
        if self._facts is not None and (page.sleeping, page.caches) != (self._facts.sleeping, self._facts.caches):
            self.look_again()

    def _restarted(self) -> None:
        log.warning("worker restarted", extra={"worker": self._endpoint.id})
        self._restarts += 1
        self._connector_asked = False
        self._context.fleet.restarted(self._endpoint.id, self._context.clock())
        self._self_tests.renew()
        self._subscriptions.relearn()
        self.look_again()


def _fell(before: Sequence[LoadReport], now: Sequence[LoadReport]) -> bool:
    """Return whether a counter fell, which means that another process answers."""
    queries = {load.rank: load.prefix_queries or 0 for load in before}
    return any((load.prefix_queries or 0) < queries.get(load.rank, 0) for load in now)
