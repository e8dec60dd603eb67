"""Workers whose `/health` is late, by sockets: alone, under load, and beside a gateway that stood still itself."""

import asyncio
import time

import pytest

from backends.vllm.control import ProbeError, ProbeFault, WorkerClient
from backends.worker import parse_endpoint
from router.config.model import Config, HealthConfig, ResidencyConfig
from router.placement.fleet.fleet import WorkerState
from router.workers.health_question import HealthQuestion
from tests.support.late_worker import LateWorker
from tests.support.waiting import eventually

LATE_S = 0.2
HEALTH = HealthConfig(probe_interval_s=0.05, probe_timeout_s=LATE_S)
READY, UNHEALTHY = WorkerState.READY, WorkerState.UNHEALTHY


@pytest.fixture
async def watched(watching):
    """`await watched(2)` starts two workers and a watcher, and waits until they are ready."""
    started = []

    async def make(count, health=HEALTH):
        its = watching(Config(health=health, residency=ResidencyConfig(kv_events=False, self_test=False)))
        its.workers = [await LateWorker().start() for _ in range(count)]
        started.extend(its.workers)
        its.endpoints = [its.follow(f"http://{worker.id}") for worker in its.workers]
        await eventually(lambda: all(one.state is READY for one in its.endpoints))
        return its

    yield make
    for worker in started:
        await worker.stop()


async def test_a_late_answer_is_an_answer(watched, metrics):
    its = await watched(2)
    its.workers[0].health_s = 1.5 * LATE_S
    asked = its.workers[0].asked
    await eventually(lambda: its.workers[0].asked >= asked + 8)
    assert {one.state for one in its.endpoints} == {READY}
    assert "needed" not in metrics.late


async def test_moving_counters_keep_a_worker_whose_health_never_answers(watched, metrics):
    its = await watched(2)
    its.workers[0].works, its.workers[0].health_s = True, None
    await eventually(lambda: metrics.late.count("progress") >= 5)
    assert its.endpoints[0].state is READY
    its.workers[0].works = False  # it does nothing any more
    await eventually(lambda: its.endpoints[0].state is UNHEALTHY)
    assert not its.fleet.dead(its.endpoints[0], asyncio.get_running_loop().time())  # /metrics answers


async def test_bytes_of_its_answers_keep_a_worker_that_answers_no_question(watched, metrics):
    its = await watched(2)
    its.workers[0].health_s = its.workers[0].metrics_s = None
    streams = [True]
    loop = asyncio.get_running_loop()
    its.fleet.on_evidence.append(lambda: streams and its.endpoints[0].evidence.progressed(loop.time()))
    await eventually(lambda: metrics.late.count("progress") >= 5)
    assert its.endpoints[0].state is READY
    streams.clear()
    await eventually(lambda: its.endpoints[0].state is UNHEALTHY)
    assert its.fleet.dead(its.endpoints[0], loop.time())


async def test_a_worker_that_stopped_is_out_after_three_time_outs_and_comes_back(watched):
    its = await watched(2)
    stopped = its.workers[0]
    stopped.health_s = stopped.metrics_s = None
    began_s = time.monotonic()
    await eventually(lambda: its.endpoints[0].state is UNHEALTHY)
    assert time.monotonic() - began_s >= 2 * LATE_S
    assert its.endpoints[1].state is READY
    assert its.fleet.dead(its.endpoints[0], asyncio.get_running_loop().time())
    stopped.health_s = stopped.metrics_s = 0.0
    await eventually(lambda: its.endpoints[0].state is WorkerState.HALF_OPEN)


async def test_the_last_worker_is_kept_and_the_panic_is_logged_once(watched, metrics, caplog):
    its = await watched(2)
    await its.workers[1].stop()
    await eventually(lambda: its.endpoints[1].state is UNHEALTHY)
    its.workers[0].health_s = its.workers[0].metrics_s = None
    await eventually(lambda: metrics.late.count("needed") >= 3)
    assert its.endpoints[0].state is READY and its.endpoints[0].health.kept_since_s is not None
    assert sum(record.message.startswith("worker kept") for record in caplog.records) == 1
    its.workers[0].health_s = its.workers[0].metrics_s = 0.0
    await eventually(lambda: its.endpoints[0].health.kept_since_s is None)


async def test_all_workers_late_at_once_count_for_nobody(watched, metrics):
    its = await watched(3)
    for worker in its.workers:
        worker.health_s = worker.metrics_s = None
    await eventually(lambda: metrics.late.count("nobody") >= 9)
    assert {one.state for one in its.endpoints} == {READY}


@pytest.mark.parametrize("how", ["refused", "reset"])
async def test_refusals_and_resets_eject_a_worker_that_works(watched, how):
    its = await watched(2)
    loop = asyncio.get_running_loop()
    its.fleet.on_evidence.append(lambda: its.endpoints[0].evidence.progressed(loop.time()))
    if how == "refused":
        await its.workers[0].stop()
    else:
        its.workers[0].resets = True
    await eventually(lambda: its.endpoints[0].state is UNHEALTHY)
    evidence = its.endpoints[0].evidence
    assert (evidence.refused_s if how == "refused" else evidence.reset_s) > 0.0


async def test_a_gateway_that_stood_still_blames_no_worker(watched, metrics):
    its = await watched(2, health=HealthConfig(0.05, LATE_S, 1))
    for _ in range(3):
        asked = [worker.asked for worker in its.workers]
        for worker in its.workers:
            worker.health_s = LATE_S / 4
        await eventually(lambda asked=asked: all(one.asked > n for one, n in zip(its.workers, asked, strict=True)))
        time.sleep(2 * LATE_S)  # noqa: ASYNC251, the point of the test
    await asyncio.sleep(LATE_S)
    assert {one.state for one in its.endpoints} == {READY} and not metrics.late


async def test_open_questions_are_bounded_and_closed():
    worker = await LateWorker().start()
    worker.health_s = None
    async with WorkerClient() as client:
        question = HealthQuestion(client, parse_endpoint(f"http://{worker.id}"), 0.01)
        for _ in range(9):
            with pytest.raises(ProbeError) as raised:
                await question.ask()
            assert raised.value.fault is ProbeFault.LATE
        waiting = lambda: [task for task in asyncio.all_tasks() if task.get_name().startswith("health of")]  # noqa: E731
        await eventually(lambda: len(waiting()) == 3)
        question.close()
        await eventually(lambda: not waiting())
    await worker.stop()
