"""The command against an embedded worker."""

import argparse
import asyncio

import httpx
import pytest

from backends.engine.profile import load_profile
from backends.engine.profile_text import profile_text
from backends.simulated.serving import serving
from backends.simulated.settings import WorkerSettings
from loadtest.calibrate import command
from loadtest.calibrate.readings import CalibrationError
from loadtest.calibrate.run import calibrate
from loadtest.calibrate.worker.calls import Calls, sample
from loadtest.fleet.process import Process, warmroute
from tests.support.held_out_steps import held_out_errors

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
        assert "serves 1 requests; drain it first" in await refused(worker.url)
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


async def test_a_worker_that_does_not_say_its_limits_can_be_compared(bare_worker, tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text(profile_text(PLANTED) + "[fingerprint]\nblock_size = 16\nmax_num_seqs = 256\n")
    assert await asyncio.to_thread(calibrate, parsed(bare_worker.url, "--check", str(path))) == 0
    assert "max_num_seqs" in capsys.readouterr().err
    wrong = ("--check", str(path), "--max-num-seqs", "64")
    assert "max_num_seqs is 256 in the profile, 64 here" in await refused(bare_worker.url, *wrong)
    assert "has no use for --kv-tokens" in await refused("http://x", "--check", str(path), "--kv-tokens", "9")


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
    errors = held_out_errors(found, PLANTED, SLOWED)
    assert errors["prefill"] < 0.05 and errors["decode"] < 0.05 and errors["mixed"] < 0.10, errors
    assert found.fingerprint.engine.startswith("vllm 0.33.0")
