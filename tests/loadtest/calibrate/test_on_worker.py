"""The command against an embedded worker."""

import argparse
import asyncio
import random
from dataclasses import replace

import httpx
import pytest

from backends.engine.profile import load_profile
from backends.engine.profile_text import profile_text
from backends.engine.timing import StepTiming
from backends.simulated.serving import serving
from backends.simulated.settings import WorkerSettings
from loadtest.calibrate import command
from loadtest.calibrate.readings import CalibrationError, chunk
from loadtest.calibrate.run import calibrate
from loadtest.calibrate.worker.calls import Calls, sample
from loadtest.fleet.process import Process, warmroute

PLANTED = load_profile("llama-3.1-70b-4xh100")
SLOWED = 1.5
"""The embedded worker and this test share the machine's cores, and a wait has whole milliseconds."""


def parsed(*flags):
    commands = argparse.ArgumentParser().add_subparsers()
    command.register(commands)
    return commands.choices["calibrate"].parse_args(list(flags))


async def refused(*flags):
    with pytest.raises(CalibrationError) as error:
        await asyncio.to_thread(calibrate, parsed(*flags))
    return str(error.value)


@pytest.fixture
async def worker():
    settings = WorkerSettings(time_scale=0.0, dev_mode=True, kv_events=False)
    async with serving(settings) as running:
        yield running


@pytest.fixture
async def bare_worker():
    async with serving(WorkerSettings(time_scale=0.0, kv_events=False)) as running:
        yield running


async def test_a_worker_that_does_not_say_its_limits_needs_flags(bare_worker):
    assert "write --max-num-batched-tokens" in await refused(bare_worker.url)
    assert "write --max-num-seqs" in await refused(bare_worker.url, "--max-num-batched-tokens", "8192")


async def test_a_limit_that_is_not_the_workers_is_refused(worker):
    assert "max_num_seqs is 256 on the worker, not 64" in await refused(worker.url, "--max-num-seqs", "64")


async def test_a_busy_worker_is_refused(worker):
    async with httpx.AsyncClient(timeout=20) as http:
        worker.worker.clock.freeze()
        body = {"model": "warmroute-simulated", "prompt": "x", "max_tokens": 4}
        asked = asyncio.create_task(http.post(f"{worker.url}/v1/completions", json=body))
        while not worker.worker.engine.has_work:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert "serves 1 requests; drain it first, or add --shared" in await refused(worker.url)
        worker.worker.clock.thaw()
        await asked


async def test_a_profile_of_something_else_is_refused_with_the_field(worker, tmp_path, capsys):
    path = tmp_path / "mine.toml"
    said = {"dtype": "bfloat16", "max_num_seqs": 256}
    path.write_text(profile_text(PLANTED) + "[fingerprint]\n" + f'dtype = "{said["dtype"]}"\nmax_num_seqs = 256\n')
    assert await asyncio.to_thread(calibrate, parsed(worker.url, "--check", str(path))) == 0
    assert "not compared, because one of both does not know it: gpu" in capsys.readouterr().err
    path.write_text(path.read_text().replace('dtype = "bfloat16"', 'dtype = "float16"'))
    assert "dtype is float16 in the profile, bfloat16 here" in await refused(worker.url, "--check", str(path))


async def test_no_file_is_overwritten(tmp_path):
    (tmp_path / "mine.toml").write_text("")
    assert "exists; name another file" in await refused("http://127.0.0.1:9", "--out", str(tmp_path / "mine.toml"))


async def test_an_address_where_nothing_listens_is_an_error():
    assert "127.0.0.1:9" in await refused("http://127.0.0.1:9")
    assert "is no worker" in await refused("ftp://x")


async def test_prompts_and_cached_tokens_are_counted(worker):
    async with httpx.AsyncClient() as http:
        calls = Calls(http, worker.url, "warmroute-simulated")
        prompt = list(range(300, 400))
        arrivals = []
        before = await calls.counted()
        await calls.answer(prompt)
        first = await calls.counted_after(before)
        await calls.answer(prompt)
        second = await calls.counted_after(first)
        await calls.stream([prompt, prompt[:50]], 5, arrivals.append)
    assert (first.prefills - before.prefills, first.prompt_tokens - before.prompt_tokens) == (1, 100)
    assert (first.hit_tokens - before.hit_tokens, second.hit_tokens - first.hit_tokens) == (0, 96)
    assert sorted((one.sequence, one.tokens) for one in arrivals) == [(n, 1) for n in (0, 1) for _ in range(5)]


async def test_an_answer_that_is_an_error_is_said(worker):
    async with httpx.AsyncClient() as http:
        with pytest.raises(CalibrationError, match="404"):
            await Calls(http, worker.url, "other").answer([300])


def test_a_metric_is_summed_over_its_labels():
    page = '# HELP a x\na{engine="0"} 2\na{engine="1"} 3.5\na_total 9\nb 1\n'
    assert (sample(page, "a"), sample(page, "b"), sample(page, "c")) == (5.5, 1.0, 0.0)


@pytest.mark.slow
@pytest.mark.measures
def test_a_planted_profile_is_found(tmp_path):
    """Held-out points within 5 % (prompts), 5 % (decode) and 10 % (mixed steps), with steps that vary by 5 %."""
    flags = ("--port", "0", "--dev-mode", "--profile", PLANTED.name, "--time-scale", str(SLOWED))
    process = Process(warmroute("worker", *flags), "worker")
    try:
        url = process.wait_for(r"worker (http://[^\s]+)")[1]
        out = tmp_path / "found.toml"
        assert command.run(parsed(url, "--out", str(out))) == 0
    finally:
        process.stop()
    found = load_profile(str(out))
    assert found.kv_tokens == PLANTED.num_blocks * PLANTED.block_size
    ours, theirs = StepTiming(found, random.Random(0)), StepTiming(PLANTED, random.Random(0), speed=1 / SLOWED)
    for tokens, cached in ((1_000, 0), (5_000, 0), (20_000, 0), (1_000, 16_000)):
        sums = [sum(one.step_s([part], 0, 0) for part in chunk(tokens, cached, 8_192)) for one in (ours, theirs)]
        assert sums[0] == pytest.approx(sums[1], rel=0.05), (tokens, cached)
    for sequences, context in ((4, 1_000), (16, 2_000), (48, 1_500), (128, 1_000)):
        step = [one.step_s([], sequences, sequences * context) for one in (ours, theirs)]
        assert step[0] == pytest.approx(step[1], rel=0.05), (sequences, context)
    mixed = [one.step_s([(3_000, 2_000)], 16, 32_000) for one in (ours, theirs)]
    assert mixed[0] == pytest.approx(mixed[1], rel=0.10)
    assert replace(found.fingerprint, date=None).engine.startswith("vllm 0.33.0")
