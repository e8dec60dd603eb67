import asyncio
from types import SimpleNamespace

import pytest

from backends.worker import LoadReport, ServedModel, WorkerFacts
from policies.view import Residency
from router.metrics.registry import Registry
from router.workers import selftests as subject
from router.workers.selftest import SelfTestVerdict
from router.workers.selftests import AGAIN_S, LONGEST_AGAIN_S, OFF_AGAIN_S, SelfTests
from router.workers.watch_context import WatchMetrics

FACTS = WorkerFacts(models=(ServedModel("m"),))
IDLE, BUSY = LoadReport(0, 0, 0, 0.0), LoadReport(0, 2, 1, 0.5)
SETTLED = SelfTestVerdict(Residency.APPROXIMATE, "counted")
OPEN = SelfTestVerdict(Residency.APPROXIMATE, "not known", settled=False)
OFF = SelfTestVerdict(Residency.OFF, "nothing found", settled=False)
DISABLED = SelfTestVerdict(Residency.OFF, "disabled")


class Bench:
    """One candidate whose tests end as `verdicts` say, one after the other; the last one is repeated."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *verdicts: SelfTestVerdict) -> None:
        self.now_s, self.runs, self.views = 1000.0, 0, []
        self.verdicts = list(verdicts)
        bench = self

        class Test:
            answered = False

            def __init__(self, *_: object) -> None:
                pass

            async def run(self) -> SelfTestVerdict:
                bench.runs += 1
                return bench.verdicts[min(bench.runs, len(bench.verdicts)) - 1]

        monkeypatch.setattr(subject, "SelfTest", Test)
        self.candidate = SimpleNamespace(id="w", slot=0, rank=None, block_tokens=16, caches=True, live=True, load=IDLE)
        around = SimpleNamespace(
            clock=lambda: self.now_s,
            config=SimpleNamespace(residency=SimpleNamespace(self_test=True)),
            self_test_lock=None,
            residency=SimpleNamespace(slot=lambda slot: self),
            identity=None,
            metrics=WatchMetrics(Registry()),
        )
        endpoint = SimpleNamespace(id="w", endpoint=None, candidates=(self.candidate,), ranks=None)
        linked = SimpleNamespace(linked=True, why_not=lambda candidate: None)
        self.tests = SelfTests(around, None, endpoint, linked)

    def tested(self, verdict: Residency, reason: str, *, blind: bool) -> None:
        self.views.append(verdict)

    async def runs_after(self, passed_s: float) -> int:
        """Tests made when so much time has passed and the probes have looked again."""
        self.now_s += passed_s
        before = self.runs
        self.tests.consider(FACTS)
        await self.tests.ended()
        return self.runs - before


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch):
    return lambda *verdicts: Bench(monkeypatch, *verdicts)


async def test_a_settled_verdict_is_not_tested_again(bench) -> None:
    for verdict in (SETTLED, DISABLED):
        its = bench(verdict)
        assert await its.runs_after(0) == 1
        assert await its.runs_after(1e6) == 0


async def test_an_open_verdict_is_retested_at_growing_intervals(bench) -> None:
    its = bench(OPEN)
    assert await its.runs_after(0) == 1
    pause_s = AGAIN_S
    for _ in range(10):
        assert await its.runs_after(pause_s - 1) == 0
        assert await its.runs_after(1) == 1
        pause_s = min(LONGEST_AGAIN_S, 2 * pause_s)
    assert pause_s == LONGEST_AGAIN_S


async def test_a_retest_waits_for_a_quiet_moment_with_a_limit(bench) -> None:
    its = bench(OPEN, SETTLED)
    its.candidate.load = BUSY
    assert await its.runs_after(0) == 1, "the first test does not wait"
    assert await its.runs_after(AGAIN_S) == 0
    its.candidate.load = IDLE
    assert await its.runs_after(1) == 1
    its = bench(OPEN)
    its.candidate.load = BUSY
    assert await its.runs_after(0) == 1
    assert await its.runs_after(AGAIN_S + 2 * AGAIN_S) == 1


async def test_caching_off_is_retested_rarely_and_can_change(bench) -> None:
    its = bench(OFF, SETTLED)
    assert await its.runs_after(0) == 1
    assert await its.runs_after(OFF_AGAIN_S - 1) == 0
    assert await its.runs_after(1) == 1
    assert its.views == [Residency.OFF, Residency.APPROXIMATE]


async def test_a_self_test_that_raises_is_logged_and_retried(bench, caplog) -> None:
    its = bench(OPEN)
    its.verdicts = []  # the next test raises IndexError
    assert await its.runs_after(0) == 1
    assert [record.message for record in caplog.records] == ["self-test failed"]
    assert await its.runs_after(AGAIN_S - 1) == 0
    assert await its.runs_after(1) == 1


async def test_a_new_worker_process_is_tested_at_once(bench) -> None:
    its = bench(OPEN)
    await its.runs_after(0)
    its.tests.renew()
    assert await its.runs_after(0) == 1


async def test_a_worker_restarted_during_its_test_is_tested_again(bench) -> None:
    its = bench(SETTLED)
    its.tests.consider(FACTS)
    await asyncio.sleep(0)
    its.tests.renew()
    await its.tests.ended()
    assert await its.runs_after(0) == 1
