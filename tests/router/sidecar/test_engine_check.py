import asyncio
from contextlib import asynccontextmanager

import msgspec

from backends.vllm.control import WorkerClient
from backends.vllm.metrics import MetricsPage
from backends.worker import LoadReport, RankCache, ServedModel, WorkerFacts, parse_endpoint
from router.config.model import SidecarConfig
from router.sidecar import engine_check
from router.sidecar.engine_check import EngineCheck, EngineProgress
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import eventually

ONE_RANK = WorkerFacts(models=(ServedModel("m"),))
TWO_RANKS = WorkerFacts(models=(ServedModel("m"),), caches={rank: RankCache(16, 10, True) for rank in (0, 1)})
SETTINGS = SidecarConfig(hung_after_s=0.3)


def page(*, running=1, usage=0.5, generated=10, rank=0):
    load = LoadReport(rank, running, 0, usage, generation_tokens=generated)
    return MetricsPage({}, (load,), sleeping=False, started_s=1.0)


async def answer(script):
    await script.say(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")


async def never(script):
    await script.gone()


def status(code):
    async def refuse(script):
        await script.say(b"HTTP/1.1 %d X\r\ncontent-length: 2\r\n\r\n{}" % code)

    return refuse


@asynccontextmanager
async def checking(script, settings=SETTINGS, facts=ONE_RANK):
    worker = await ScriptedWorker(script).start()
    check = EngineCheck(settings, WorkerClient(), asyncio.get_running_loop().time)
    check.learned(parse_endpoint(f"http://{worker.id}"), facts)
    try:
        yield check, worker
    finally:
        await check.aclose()
        await worker.stop()


def test_an_engine_is_stuck_from_the_first_test_without_an_answer():
    progress = EngineProgress()
    assert progress.stuck_s(5.0) == 0.0
    progress.tested(10.0)
    progress.tested(20.0)
    assert progress.stuck_s(25.0) == 15.0
    progress.moved(22.0)
    assert progress.stuck_s(25.0) == 3.0
    progress.answered(26.0)
    assert progress.stuck_s(99.0) == 0.0


def test_a_changed_gauge_is_progress_and_the_same_report_is_none():
    progress = EngineProgress()
    load = LoadReport(0, 1, 0, 0.5, generation_tokens=10)
    progress.load_read(load, 1.0)
    progress.tested(2.0)
    progress.load_read(load, 3.0)
    assert progress.stuck_s(4.0) == 2.0
    progress.load_read(LoadReport(0, 1, 0, 0.5, generation_tokens=11), 5.0)
    assert progress.stuck_s(6.0) == 1.0
    assert progress.busy


async def test_an_idle_engine_that_answers_is_tested_again_and_does_not_hang():
    async with checking(answer) as (check, worker):
        await eventually(lambda: len(worker.requests_to(b"/v1/completions")) >= 2)
        assert check.fault() is None
        body = msgspec.json.decode(worker.requests[0].body)
        assert body == {"model": "m", "prompt": "a", "max_tokens": 1, "temperature": 0}


async def test_an_engine_that_answers_no_test_hangs_until_it_moves_again():
    async with checking(never) as (check, _):
        await eventually(lambda: check.fault() is not None)
        assert "the engine hangs: a request of one token has waited" in check.fault()
        check.load_read(page(generated=1))
        check.load_read(page(generated=2))
        assert check.fault() is None


async def test_gauges_that_change_excuse_a_test_that_waits():
    async with checking(never) as (check, worker):
        await eventually(lambda: worker.requests)
        end_s = asyncio.get_running_loop().time() + 0.6
        tokens = 0
        while asyncio.get_running_loop().time() < end_s:
            tokens += 1
            check.load_read(page(generated=tokens))
            assert check.fault() is None
            await asyncio.sleep(0.01)
        await eventually(lambda: check.fault() is not None)


async def test_a_moving_engine_gets_no_test():
    async with checking(answer, SidecarConfig(hung_after_s=15.0)) as (check, worker):
        check.load_read(page(generated=1))
        check.load_read(page(generated=2))
        await asyncio.sleep(0.1)
        assert worker.requests == []


async def test_a_hung_rank_is_found_beside_one_that_answers():
    async def first_only(script):
        await (answer if script.seen.header(b"x-data-parallel-rank") == b"0" else never)(script)

    async with checking(first_only, facts=TWO_RANKS) as (check, worker):
        await eventually(lambda: check.fault() is not None)
        assert {seen.header(b"x-data-parallel-rank") for seen in worker.requests} == {b"0", b"1"}


async def test_a_worker_that_generates_no_text_is_not_tested(caplog):
    async with checking(status(400)) as (check, worker):
        await eventually(lambda: "cannot be tested" in caplog.text)
        await asyncio.sleep(0.1)
        assert len(worker.requests) == 1 and check.fault() is None


async def test_a_server_that_refuses_while_its_engine_stands_still_hangs(monkeypatch):
    monkeypatch.setattr(engine_check, "PAUSE_S", 0.02)
    async with checking(status(503)) as (check, _):
        check.load_read(page(running=3))
        await eventually(lambda: check.fault() is not None)


async def test_a_server_that_refuses_without_requests_is_not_hung(monkeypatch):
    monkeypatch.setattr(engine_check, "PAUSE_S", 0.02)
    async with checking(status(503)) as (check, worker):
        await eventually(lambda: len(worker.requests) > 20)
        assert check.fault() is None


async def test_a_worker_that_is_down_is_not_hung(monkeypatch):
    monkeypatch.setattr(engine_check, "PAUSE_S", 0.02)
    async with checking(answer) as (check, worker):
        await eventually(lambda: worker.requests)
        await worker.stop()
        tested = []
        monkeypatch.setattr(EngineProgress, "tested", lambda self, now_s: tested.append(now_s))
        await eventually(lambda: len(tested) > 20)
        assert check.fault() is None


async def test_without_a_limit_no_test_is_sent():
    async with checking(answer, SidecarConfig(hung_after_s=0.0)) as (check, worker):
        await asyncio.sleep(0.1)
        assert worker.requests == [] and check.fault() is None
