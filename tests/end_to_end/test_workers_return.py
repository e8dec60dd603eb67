import asyncio
import os
import signal
import time

import pytest

from loadtest.drive.chat import chat
from loadtest.drive.http import Client
from loadtest.fleet.process import Process, warmroute

pytestmark = pytest.mark.slow


def body(system, text, **fields):
    return {"model": system.model, "messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}


async def drive(system, until, in_flight=8):
    """Run a closed loop of conversations that the other worker has in its cache. Return (end, worker, error) of
    each.
    """
    client = Client(system.url)
    ended = []

    async def loop(index):
        while not until.is_set():
            timing = await chat(client, body(system, f"Conversation {index % 3}. " * 60))
            ended.append((time.monotonic(), timing.worker, timing.error))

    await asyncio.gather(*(loop(index) for index in range(in_flight)))
    client.close()
    return ended


@pytest.mark.parametrize("policy", ["marginal_cost", "round_robin"])
def test_a_revived_worker_has_traffic_within_two_seconds(start, policy):
    system = start(workers=2, policy=policy, worker_flags=("--time-scale", "0.5"))
    url = system.running.worker_urls[0]
    worker, port = url.removeprefix("http://"), url.rsplit(":", 1)[1]

    async def run():
        until = asyncio.Event()
        driving = asyncio.create_task(drive(system, until))
        await asyncio.sleep(1)
        os.kill(system.running.workers[0].pid, signal.SIGKILL)
        await asyncio.to_thread(
            system.wait_for, lambda: system.workers()[worker]["state"] == "unhealthy", what="the ejection"
        )
        killed_s = time.monotonic()
        again = Process(warmroute("worker", "--host", "127.0.0.1", "--port", port, "--time-scale", "0.5"), "worker")
        try:
            await asyncio.to_thread(again.wait_for, "worker http")
            up_s = time.monotonic()
            await asyncio.sleep(3)
            until.set()
            return killed_s, up_s, await driving
        finally:
            await asyncio.to_thread(again.stop)

    killed_s, up_s, ended = asyncio.run(run())
    assert all("broke off" in error for _, _, error in ended if error)  # streams that the kill interrupted
    served = [at_s - up_s for at_s, by, _ in ended if by == worker and at_s > killed_s]
    print(f"{policy}: first answer {min(served):.2f} s after the worker listened, {len(served)} in all")
    assert min(served) < 2.0
    assert len(served) > 5


def test_sixty_mistakes_of_clients_open_no_breaker(start):
    system = start(workers=2)

    async def run():
        client = Client(system.url)
        # the worker refuses these with a 400, because the gateway does not check lengths
        wrong = [await chat(client, body(system, "Hello", max_tokens=-1)) for _ in range(60)]
        right = [await chat(client, body(system, f"Hello {number}")) for number in range(4)]
        client.close()
        return wrong, right

    wrong, right = asyncio.run(run())
    assert all("400" in timing.error for timing in wrong), wrong[0]
    assert [timing.error for timing in right] == [None] * 4
    assert {worker["state"] for worker in system.workers().values()} == {"ready"}
    assert system.metric("warmroute_retries_total") == 0
    assert system.metric("warmroute_attempt_failures_total") == 0
    assert sum("400" in line and 'path="/v1/chat' in line for line in system.admin.get("/metrics").text.splitlines())
