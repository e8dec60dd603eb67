import asyncio
import time

import pytest

from loadtest.load.http import Client
from loadtest.load.seen import Kind, chat

pytestmark = pytest.mark.slow

CHAT = b"/v1/chat/completions"
DIED = "error_event:worker_died_in_stream"


def only(load, *allowed):
    """Assert that clients saw only whole answers, and outcomes in `allowed`."""
    others = [f"\n{seen}" for seen in load.seen if seen.kind is not Kind.COMPLETE]
    assert load.kinds() <= {"complete", *allowed}, "".join(others)


async def test_a_kill_in_prefill_is_invisible_to_clients(own_lab):
    lab = await own_lab(workers=2, time_scale=40.0)
    text = "Every prompt is read before the first word of its answer. " * 150
    asking = [asyncio.create_task(lab.ask(text=f"{number} {text}", tokens=1, stream=False)) for number in range(8)]
    victim = await lab.eventually(lambda: _busy(lab, 3))
    await asyncio.to_thread(lab.fleet.kill, victim)
    answers = await asyncio.gather(*asking)
    assert [seen.kind for seen in answers] == [Kind.COMPLETE] * 8, answers
    assert len([seen for seen in answers if seen.worker != victim.id]) > 4
    await lab.at_rest()


async def _busy(lab, count):
    return next(iter([worker for worker in lab.workers if await _holds(lab, worker, count)]), None)


async def _holds(lab, worker, count):
    return sum([await lab.engine(worker, f"vllm:num_requests_{what}") for what in ("running", "waiting")]) >= count


async def _idle(lab, worker):
    return await lab.engine(worker, "vllm:num_requests_running") == 0


async def test_lost_kv_events_are_never_seen_by_a_client(lab):
    victim = lab.workers[0]
    gaps = (await lab.admin.metrics()).get("warmroute_event_gaps_total", 0)
    async with lab.load() as load:
        lab.fleet.relays.lose(0, 5)
        await lab.eventually(lambda: load.answered_by(victim, len(load.seen) - 1))
        await lab.eventually(lambda: _more(lab, "warmroute_event_gaps_total", gaps))
    only(load)
    await lab.eventually(lambda: _exact(lab, victim))
    await lab.at_rest()


async def _more(lab, metric, than):
    return (await lab.admin.metrics()).get(metric, 0) > than


async def _exact(lab, worker):
    (own,) = [each for each in await lab.admin.workers() if each["id"] == worker.id]
    return own["candidates"][0]["residency"] == "exact"


async def test_reset_connections_are_like_closed_ones(lab, scripted, joins, resets):
    """A worker that gets every second request sends RST instead of FIN, before the first byte or in mid-stream."""
    count = 0

    async def answer(script):
        nonlocal count
        count += 1
        if count % 2:
            event = b'data: {"choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            await script.say(head + b"%x\r\n%b\r\n" % (len(event), event))
            await asyncio.sleep(0.05)
        sock = script.writer.get_extra_info("socket")
        sock.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # SO_LINGER of 0 s: close sends RST
        await script.die()

    async with joins(lab, await scripted(answer)) as worker, lab.load() as load:
        await lab.eventually(lambda: len(worker.requests_to(CHAT)) >= 4)
    only(load, DIED)
    assert {seen.worker for seen in load.seen if seen.kind is not Kind.COMPLETE} <= {worker.id}
    await lab.at_rest()


async def test_a_gateway_killed_in_front_of_warm_workers(own_lab):
    lab = await own_lab(workers=2)
    text = "The same words again and again. " * 60
    assert (await lab.ask(text=text)).kind is Kind.COMPLETE
    async with lab.load() as load:
        since = len(load.seen)
        await asyncio.to_thread(lab.fleet.restart_gateway)
        # the workers abort the dead gateway's requests, because its sockets are gone
        await lab.eventually(lambda: len(load.of(Kind.COMPLETE)) > since + 8)
    only(load, "cut", "unanswered")
    assert all(kind is not Kind.BROKEN for kind in load.kinds())
    for worker in lab.workers:
        await lab.eventually(lambda worker=worker: _idle(lab, worker))
        await lab.eventually(lambda worker=worker: _exact(lab, worker))
    # the view is warm: replay has restored the blocks
    assert all(each["candidates"][0]["blocks"] for each in await lab.admin.workers())


async def test_restarted_on_its_port_it_is_exact_again(own_lab):
    """The cache is empty after the restart. At first nothing is predicted, then exactly the blocks that the worker
    reports.
    """
    headers = {"headers": {"worker": True, "predicted_cached_tokens": True}}
    lab = await own_lab(workers=1, time_scale=0.02, config=headers)
    (worker,) = lab.workers
    text = "The same words again and again. " * 40
    assert (await lab.ask(text=text)).kind is Kind.COMPLETE
    await asyncio.to_thread(lab.fleet.kill, worker)
    await lab.eventually(lambda: _is_not_ready(lab, worker))
    tests = (await lab.admin.metrics()).get("warmroute_self_tests_total", 0)
    await asyncio.to_thread(lab.fleet.restart, worker)
    up_s = time.monotonic()
    assert await lab.admin.until_ready([worker.id], 10)
    assert time.monotonic() - up_s < 3.5
    # the first batch of the new process, which is the self-test's, starts a replay: until then nothing is predicted
    await lab.eventually(lambda: _more(lab, "warmroute_self_tests_total", tests))
    await lab.eventually(lambda: _exact(lab, worker))
    first = await _timed(lab, text)
    await lab.at_rest()
    second = await _timed(lab, text)
    assert (first.error, second.error) == (None, None)
    assert first.predicted_cached_tokens == first.cached_tokens == 0
    assert second.predicted_cached_tokens == second.cached_tokens > 0
    await lab.at_rest()


async def _timed(lab, text):
    client = Client(lab.fleet.url)
    try:
        return await chat(client, lab.body(text=text))
    finally:
        client.close()


async def _is_not_ready(lab, worker):
    return await lab.state(worker) != "ready"
