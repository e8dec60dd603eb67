"""Breaking things under a real fleet: workers killed, restarted, clients that leave."""

import asyncio
import os
import signal
import time

import pytest

from loadtest.drive.chat import chat
from loadtest.drive.http import Client
from loadtest.fleet.process import Process, warmroute


def body(system, tokens, text="Hello"):
    return {"model": system.model, "messages": [{"role": "user", "content": text}], "max_tokens": tokens}


def kill(process: Process) -> None:
    os.kill(process.pid, signal.SIGKILL)


def one(system, tokens=4, text="Hello"):
    async def run():
        client = Client(system.url)
        try:
            return await chat(client, body(system, tokens, text))
        finally:
            client.close()

    return asyncio.run(run())


def test_a_worker_killed_before_the_first_byte_is_not_seen(start):
    # step times x 200: a prompt's prefill takes seconds, so the worker dies in it
    system = start(workers=2, worker_flags=("--time-scale", "200"))

    async def run():
        client = Client(system.url)
        task = asyncio.create_task(chat(client, body(system, 1, "word " * 2000)))
        index = None
        while index is None:
            await asyncio.sleep(0.02)
            busy = system.loads("running_requests")
            index = busy.index(1) if 1 in busy else None
        kill(system.running.workers[index])
        timing = await task
        client.close()
        return timing

    timing = asyncio.run(run())
    assert timing.error is None
    assert timing.completion_tokens == 1


def test_a_worker_killed_in_mid_stream_ends_the_stream_with_an_error_event(start):
    system = start(workers=1, worker_flags=("--time-scale", "3"))

    async def run():
        client = Client(system.url)
        task = asyncio.create_task(chat(client, body(system, 2000)))
        await asyncio.to_thread(system.wait_for, lambda: system.worker_metric(0, "vllm:generation_tokens_total") > 3)
        kill(system.running.workers[0])
        return await task

    timing = asyncio.run(run())
    assert timing.error is not None
    assert timing.error.startswith("error frame")
    assert timing.ttft_s is not None


def test_a_client_that_leaves_frees_the_worker_at_once(start):
    system = start(workers=1, worker_flags=("--time-scale", "3"))

    async def run():
        client = Client(system.url)
        task = asyncio.create_task(chat(client, body(system, 5000)))
        await asyncio.to_thread(
            system.wait_for, lambda: system.worker_metric(0, "vllm:num_requests_running") == 1, 20, "a running request"
        )
        task.cancel()
        await asyncio.sleep(0)
        left_s = time.monotonic()
        while await asyncio.to_thread(system.worker_metric, 0, "vllm:num_requests_running"):
            assert time.monotonic() - left_s < 5
        return time.monotonic() - left_s

    took_s = asyncio.run(run())
    assert took_s < 0.3  # 100 ms for the abort itself; the rest is reading the worker's metrics page
    system.wait_idle()


def test_a_worker_restarted_on_the_same_port_is_used_and_exact_again(start):
    system = start(workers=1)
    assert one(system, text="The same words again and again. " * 40).error is None
    port = system.running.worker_urls[0].rsplit(":", 1)[1]
    kill(system.running.workers[0])
    system.wait_for(lambda: all(w["state"] != "ready" for w in system.workers().values()), what="the loss")
    again = Process(
        warmroute("worker", "--host", "127.0.0.1", "--port", port, "--time-scale", "0.02", "--seed", "7"), "worker"
    )
    try:
        again.wait_for("worker http")
        up_s = time.monotonic()
        system.wait_for(lambda: _usable(system), what="the return")
        assert time.monotonic() - up_s < 3.5
        system.wait_for(lambda: _exact(system), what="an exact view")
        first = one(system, text="The same words again and again. " * 40)
        system.wait_idle()
        second = one(system, text="The same words again and again. " * 40)
        assert (first.error, second.error) == (None, None)
        assert first.predicted_cached_tokens == first.cached_tokens == 0
        assert second.predicted_cached_tokens == second.cached_tokens > 0
    finally:
        again.stop()


def _usable(system):
    return all(w["state"] in ("ready", "half_open") for w in system.workers().values())


def _exact(system):
    return all(c["residency"] == "exact" for w in system.workers().values() for c in w["candidates"])


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_hundred_streams_for_a_minute_leak_nothing(start):
    import psutil

    system = start(workers=2, worker_flags=("--time-scale", "8"))
    gateway = psutil.Process(system.running.gateway.pid)

    async def run(duration_s):
        client = Client(system.url)
        end_s = time.monotonic() + duration_s
        errors = []

        async def stream(index):
            number = 0
            while time.monotonic() < end_s:
                timing = await chat(client, body(system, 40, f"Stream {index}, question {number}: why?"))
                number += 1
                if timing.error:
                    errors.append(timing.error)

        await asyncio.gather(*(stream(index) for index in range(200)))
        client.close()
        return errors

    assert asyncio.run(run(10)) == []
    system.wait_idle()
    files, memory = gateway.num_fds(), gateway.memory_info().rss
    assert asyncio.run(run(60)) == []
    system.wait_idle()
    assert not any(system.loads("queued_tokens"))
    assert not any(system.loads("kv_tokens"))
    system.wait_for(lambda: gateway.num_fds() <= files + 4, what="sockets closed")
    assert gateway.memory_info().rss - memory < 30e6
