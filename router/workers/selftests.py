from __future__ import annotations

import asyncio
import logging
import math

from backends.vllm.control import WorkerClient
from backends.worker import WorkerFacts
from policies.view import Residency
from router.placement.fleet import traffic
from router.placement.fleet.fleet import Candidate, FleetEndpoint
from router.workers.selftest import POLL_S, SETTLE_S, SelfTest, SelfTestTarget, SelfTestVerdict
from router.workers.subscriptions import Subscriptions
from router.workers.watch_context import WatchContext

AGAIN_S = 30.0
"""Wait after a test without a settled verdict, doubled each time."""
LONGEST_AGAIN_S = 3_600.0
OFF_AGAIN_S = 900.0
"""Wait after a test that found prefix caching off: the cache may have been cleared during the test."""
LOCK_RETRY_S = 0.05
"""Interval of attempts to lock a worker that another gateway process tests."""

log = logging.getLogger("warmroute.workers")


class SelfTests:
    """Test every candidate of a worker process, one at a time, during normal traffic.

    The first test runs at once. A test without a settled verdict is repeated later, in a quiet moment if there is one.
    Without KV events and reports only the worker's counters help, and other requests move them.
    """

    def __init__(
        self, context: WatchContext, client: WorkerClient, endpoint: FleetEndpoint, subscriptions: Subscriptions
    ) -> None:
        self._context = context
        self._client = client
        self._endpoint = endpoint
        self._subscriptions = subscriptions
        self._due_s = -math.inf
        self._again_s = AGAIN_S
        self._renewals = 0
        self._verdicts: dict[str, SelfTestVerdict] = {}
        self._unlinked = False
        self._task: asyncio.Task[None] | None = None

    def renew(self) -> None:
        """Test again, because the worker may be another process, or its prompts are tokenised in another way."""
        self._renewals += 1
        self._due_s = -math.inf
        self._again_s = AGAIN_S

    def consider(self, facts: WorkerFacts) -> None:
        """Start a test if one is due. A test made without events is repeated once there are events."""
        if self._unlinked and self._subscriptions.linked and self._task is None:
            self.renew()
        if self._context.config.residency.self_test and self._task is None and not facts.sleeping and self._due():
            name = f"self-test {self._endpoint.id}"
            self._task = asyncio.get_running_loop().create_task(self._run(facts), name=name)

    def _due(self) -> bool:
        """Return whether a test is due: its time has come and the worker is idle, or its time is long past."""
        late_s = self._context.clock() - self._due_s
        return late_s >= 0 and (late_s >= self._again_s or self._quiet())

    def _quiet(self) -> bool:
        loads = [candidate.load for candidate in self._endpoint.candidates]
        return all(load is not None and load.running + load.waiting == 0 for load in loads)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def ended(self) -> None:
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def statistics(self) -> dict[str, dict[str, str]]:
        return {
            worker: {"verdict": verdict.residency.value, "reason": verdict.reason}
            for worker, verdict in self._verdicts.items()
        }

    async def _run(self, facts: WorkerFacts) -> None:
        try:
            await self._linked()
            self._unlinked = not self._subscriptions.linked
            renewals = self._renewals
            verdicts = await self._locked_tests(facts)
            if renewals == self._renewals:
                self._plan(verdicts)
        except Exception:
            log.exception("self-test failed", extra={"worker": self._endpoint.id})
            self._plan_again()
        finally:
            self._task = None

    def _plan(self, verdicts: list[SelfTestVerdict]) -> None:
        open_ones = [verdict for verdict in verdicts if not verdict.settled]
        if any(verdict.residency is not Residency.OFF for verdict in open_ones):
            self._plan_again()
        else:
            self._due_s = self._context.clock() + OFF_AGAIN_S if open_ones else math.inf

    def _plan_again(self) -> None:
        self._due_s = self._context.clock() + self._again_s
        self._again_s = min(LONGEST_AGAIN_S, 2 * self._again_s)

    async def _locked_tests(self, facts: WorkerFacts) -> list[SelfTestVerdict]:
        lock = self._context.self_test_lock
        while lock is not None:
            with lock.alone(self._endpoint.id) as alone:
                if alone:
                    return await self._test_all(facts)
            await asyncio.sleep(LOCK_RETRY_S)
        return await self._test_all(facts)

    async def _test_all(self, facts: WorkerFacts) -> list[SelfTestVerdict]:
        return [await self._test(candidate, facts) for candidate in self._endpoint.candidates]

    async def _linked(self) -> None:
        for _ in range(round(SETTLE_S / POLL_S)):
            if self._subscriptions.linked:
                return
            await asyncio.sleep(POLL_S)

    async def _test(self, candidate: Candidate, facts: WorkerFacts) -> SelfTestVerdict:
        base = next((card for card in facts.models if card.parent is None), None)
        if base is None:
            reason = "no self-test: the worker does not say which models it serves"
            verdict = SelfTestVerdict(Residency.UNKNOWN, reason, settled=False)
        else:
            subject = SelfTestTarget(
                endpoint=self._endpoint.endpoint,
                slot=candidate.slot,
                rank=candidate.rank,
                ranks=self._endpoint.ranks,
                model=base.id,
                block_tokens=candidate.block_tokens,
                prefix_caching=candidate.caches,
                max_model_len=base.max_model_len,
                no_events=self._subscriptions.why_not(candidate),
            )
            test = SelfTest(self._client, self._context.residency, self._context.identity, subject)
            verdict = await test.run()
            if test.answered and candidate.live:
                traffic.succeeded(self._context.fleet, self._endpoint, trial=True, complete=True)
        if candidate.live:
            self._judge(candidate, verdict)
        return verdict

    def _judge(self, candidate: Candidate, verdict: SelfTestVerdict) -> None:
        self._context.metrics.self_tests.add(1.0, (verdict.residency.value,))
        self._context.residency.slot(candidate.slot).tested(verdict.residency, verdict.reason, blind=verdict.blind)
        if self._verdicts.get(candidate.id) != verdict:
            self._verdicts[candidate.id] = verdict
            level = logging.INFO if verdict.residency is Residency.EXACT else logging.WARNING
            fields = {"worker": candidate.id, "verdict": verdict.residency.value, "reason": verdict.reason}
            log.log(level, "self-test", extra=fields)
