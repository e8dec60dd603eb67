"""When one endpoint's candidates are tested, and what became of it."""

from __future__ import annotations

import asyncio
import logging

from backends.vllm.control import WorkerClient
from backends.worker import WorkerFacts
from policies.view import Residency
from router.core.fleet import Candidate, FleetEndpoint
from router.watch.selftest import POLL_S, SETTLE_S, SelfTest, Subject, Verdict
from router.watch.subscriptions import Subscriptions
from router.watch.surroundings import Surroundings

TRIES = 3
"""Tests of one process that came to nothing before it is left alone."""
TURN_S = 0.05
"""How long to wait before asking again whether another gateway process has done with the worker."""

log = logging.getLogger("warmroute.watch")


class SelfTests:
    """Tests every candidate once per worker process, beside the traffic, one at a time."""

    def __init__(
        self, around: Surroundings, client: WorkerClient, endpoint: FleetEndpoint, subscriptions: Subscriptions
    ) -> None:
        self._around = around
        self._client = client
        self._endpoint = endpoint
        self._subscriptions = subscriptions
        self._tries_left = TRIES
        self._verdicts: dict[str, Verdict] = {}
        self._unlinked = False
        self._task: asyncio.Task[None] | None = None

    def renew(self) -> None:
        """The worker is, or may be, another process."""
        self._tries_left = TRIES

    def consider(self, facts: WorkerFacts) -> None:
        """A full probe has found `facts`: start a test if one is due. One made without events is made again with."""
        if self._unlinked and self._subscriptions.linked:
            self.renew()
        if self._around.settings.self_test and self._tries_left and not facts.sleeping and self._task is None:
            self._tries_left -= 1
            name = f"self-test {self._endpoint.id}"
            self._task = asyncio.get_running_loop().create_task(self._run(facts), name=name)

    def cancel(self) -> None:
        """Give up the test that runs, if one does."""
        if self._task is not None:
            self._task.cancel()

    async def ended(self) -> None:
        """Wait for the test that runs, if one does."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def statistics(self) -> dict[str, dict[str, str]]:
        """Each candidate's verdict and its reason."""
        return {
            worker: {"verdict": verdict.residency.value, "reason": verdict.reason}
            for worker, verdict in self._verdicts.items()
        }

    async def _run(self, facts: WorkerFacts) -> None:
        try:
            await self._linked()
            self._unlinked = not self._subscriptions.linked
            verdicts = await self._in_turn(facts)
            if Residency.UNKNOWN not in verdicts:
                self._tries_left = 0
        finally:
            self._task = None

    async def _in_turn(self, facts: WorkerFacts) -> list[Residency]:
        turns = self._around.test_turns
        while turns is not None:
            with turns.alone(self._endpoint.id) as alone:
                if alone:
                    return await self._test_all(facts)
            await asyncio.sleep(TURN_S)
        return await self._test_all(facts)

    async def _test_all(self, facts: WorkerFacts) -> list[Residency]:
        return [await self._test(candidate, facts) for candidate in self._endpoint.candidates]

    async def _linked(self) -> None:
        for _ in range(round(SETTLE_S / POLL_S)):
            if self._subscriptions.linked:
                return
            await asyncio.sleep(POLL_S)

    async def _test(self, candidate: Candidate, facts: WorkerFacts) -> Residency:
        base = next((card for card in facts.models if card.parent is None), None)
        if base is None:
            verdict = Verdict(Residency.UNKNOWN, "no self-test: the worker does not say which models it serves")
        else:
            subject = Subject(
                endpoint=self._endpoint.endpoint,
                slot=candidate.slot,
                rank=candidate.rank,
                model=base.id,
                block_tokens=candidate.block_tokens,
                prefix_caching=candidate.caches,
                max_model_len=base.max_model_len,
                no_events=self._subscriptions.why_not(candidate),
            )
            test = SelfTest(self._client, self._around.residency, self._around.identity, subject)
            verdict = await test.run()
            if test.answered and candidate.live:
                self._around.fleet.self_test_answered(self._endpoint)
        if candidate.live:
            self._judge(candidate, verdict)
        return verdict.residency

    def _judge(self, candidate: Candidate, verdict: Verdict) -> None:
        self._around.metrics.self_tested(verdict.residency.value)
        self._around.residency.set_self_test(candidate.slot, verdict.residency, verdict.reason, blind=verdict.blind)
        if self._verdicts.get(candidate.id) != verdict:
            self._verdicts[candidate.id] = verdict
            level = logging.INFO if verdict.residency is Residency.EXACT else logging.WARNING
            fields = {"worker": candidate.id, "verdict": verdict.residency.value, "reason": verdict.reason}
            log.log(level, "self-test", extra=fields)
