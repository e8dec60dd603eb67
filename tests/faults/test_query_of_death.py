"""A request that kills its worker, among good ones, with real processes, SIGKILL and continuous load."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from loadtest.load.http import Client
from tests.support.exchanges import exchanged

pytestmark = pytest.mark.slow

MORTAL = Path(__file__).parent / "mortal_worker.py"
REFUSED = 422, "request_crashes_workers"
DIED = "error_event:worker_died_in_stream"
SDK_PAUSE_S = 0.4


def program(how):
    # -P leaves out the script's folder; the checkout is still found, because it is installed
    return (sys.executable, "-P", str(MORTAL), how)


async def asked(lab, stream=True, text="poison"):
    """Send one request; return its status and error code."""
    client = Client(lab.fleet.url)
    body = json.dumps(lab.body(text=text, stream=stream)).encode()
    try:
        async with exchanged(client, client.request_bytes("POST", "/v1/chat/completions", body)) as response:
            answer = await response.read()
            return response.status, json.loads(answer).get("error", {}).get("code") if response.status != 200 else None
    finally:
        client.close()


async def sdk(lab, **options):
    """Make one call as a client library does: up to three tries, while the answer allows another one."""
    for _ in range(3):
        outcome = await asked(lab, **options)
        if outcome[0] < 500:
            break
        await asyncio.sleep(SDK_PAUSE_S)
    return outcome


def dead(lab):
    return [worker for worker in lab.workers if not worker.process.alive]


@pytest.mark.parametrize("how", ["kill", pytest.param("exit", marks=pytest.mark.nightly)])
async def test_a_body_costs_two_workers_however_often_it_is_sent(own_lab, how):
    lab = await own_lab(workers=4, worker_program=program(how))
    async with lab.load(clients=2) as load:
        outcomes = [await sdk(lab) for _ in range(3)]
        await asyncio.sleep(0.5)
        assert len(dead(lab)) == 2, outcomes
        assert outcomes == [REFUSED] * 3
        since = len(load.seen)
        await lab.eventually(lambda: len(load.seen) > since + 16)
        assert (await asked(lab))[0] == 422
    # a good request that ran beside the query of death twice has failed with both workers
    assert load.kinds() <= {"complete", DIED, "cut", "refused:worker_failed"}
    lost = (await lab.admin.metrics())["warmroute_worker_deaths_total"]
    assert lost == 2
    for worker in dead(lab):
        await asyncio.to_thread(lab.fleet.restart, worker)
    await lab.at_rest()


@pytest.mark.timeout(300)  # starts 23 processes, one after the other
async def test_twenty_kills_under_load_refuse_no_good_request(own_lab):
    """One body is repeated and is on every worker that dies. Two other bodies are sent at the same time."""
    lab = await own_lab(workers=3, time_scale=1.0)
    good = "The same question from everybody. " * 30
    outcomes, going = [], True

    async def repeat():
        while going:
            outcomes.append(await asked(lab, text=good, stream=len(outcomes) % 2 == 0))

    asking = [asyncio.create_task(repeat()) for _ in range(4)]
    try:
        async with lab.load(clients=2) as load:
            for number in range(20):
                victim = lab.workers[number % len(lab.workers)]
                await asyncio.to_thread(lab.fleet.kill, victim)
                await asyncio.to_thread(lab.fleet.restart, victim)
                since = len(outcomes)
                await lab.eventually(lambda since=since: len(outcomes) > since + 4)
    finally:
        going = False
        await asyncio.gather(*asking)
    # a good request that has lost both of its workers failed, and may be sent again
    assert set(outcomes) <= {(200, None), (503, "worker_failed")}
    assert outcomes.count((200, None)) > 0.95 * len(outcomes)
    assert load.kinds() <= {"complete", DIED, "cut", "refused:worker_failed"}
    metrics = await lab.admin.metrics()
    assert metrics.get("warmroute_worker_deaths_total", 0) > 0, "no kill met a request before its first token"
    await lab.at_rest()
