import asyncio

import pytest

from loadtest.drive.http import Client
from loadtest.drive.seen import Kind, observe

pytestmark = [pytest.mark.slow, pytest.mark.measures]

LONG = "Every prompt is read before the first word of its answer. " * 100


async def half_a_head(connection, lab):
    await send(connection, lab.raw()[0][:30])


async def half_a_body(connection, lab):
    head, body = lab.raw(text=LONG)
    await send(connection, head + body[:1000])


async def before_the_first_byte(connection, lab):
    await send(connection, b"".join(lab.raw(text=LONG, tokens=500)))


async def in_mid_stream(connection, lab):
    await send(connection, b"".join(lab.raw(tokens=500)))
    await receive(connection, lambda received: received.count(b"data: ") >= 3)


async def nothing_sent(connection, lab):
    pass


async def between_two_requests(connection, lab):
    await send(connection, b"".join(lab.raw(tokens=2)))
    await receive(connection, ended)


async def send(connection, data):
    await asyncio.get_running_loop().sock_sendall(connection, data)


async def receive(connection, enough):
    received = b""
    while not enough(received):
        data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(connection, 65536), 20)
        assert data, f"closed behind {received!r}"
        received += data
    return received


def ended(received):
    return received.endswith(b"0\r\n\r\n")


PHASES = [nothing_sent, half_a_head, half_a_body, before_the_first_byte, in_mid_stream, between_two_requests]


@pytest.mark.parametrize("how", ["close", "reset", "half_close"])
async def test_a_client_that_leaves_in_any_state_costs_others_nothing(lab, resets, how):
    """A client that left leaves no work behind: its worker is free while the load continues."""
    left = {"close": lambda each: each.close(), "reset": resets, "half_close": lambda each: each.shutdown(1)}[how]
    aborts = (await lab.admin.metrics()).get("warmroute_client_aborts_total", 0)
    async with lab.load(clients=6) as load:
        leavers = [(phase, await lab.connect()) for phase in PHASES for _ in range(4)]
        await asyncio.gather(*(phase(connection, lab) for phase, connection in leavers))
        for _, connection in leavers:
            left(connection)
        await lab.eventually(lambda: _only_the_load(lab, clients=6))
        since = len(load.seen)
        await lab.eventually(lambda: len(load.seen) > since + 6)
    assert load.kinds() == {"complete"}
    # clients that left in the body, before the first byte and in mid-stream had a request
    assert (await lab.admin.metrics())["warmroute_client_aborts_total"] - aborts >= 3 * 4
    await lab.at_rest()
    for _, connection in leavers:
        connection.close()


async def _only_the_load(lab, clients):
    """Check that no worker computes for a client that has left. Such clients asked for 500 tokens, which takes 10 s."""
    running = [await lab.engine(worker, "vllm:num_requests_running") for worker in lab.workers]
    return sum(running) <= clients and (await lab.admin.metrics())["warmroute_client_connections"] <= clients + 1


async def test_slow_readers_get_everything_and_delay_no_other_client(lab):
    """With small buffers and a pause after every read, slow readers get whole answers, and other clients wait no
    longer.
    """
    slow = Client(lab.fleet.url, 4_096)
    body = lab.body(tokens=100)
    async with lab.load(clients=6) as load:
        reading = [asyncio.create_task(observe(slow, "/v1/chat/completions", body, dawdle_s=0.02)) for _ in range(10)]
        since = len(load.seen)
        await lab.eventually(lambda: len(load.seen) > since + 12)
        answers = await asyncio.gather(*reading)
    slow.close()
    assert {seen.kind for seen in answers} == {Kind.COMPLETE}
    assert load.kinds() == {"complete"}
    await lab.at_rest()


async def test_slow_senders_get_their_answer(lab):
    """Head and body arrive byte by byte, well within the time limits."""

    async def drip():
        connection = await lab.connect()
        data = b"".join(lab.raw(tokens=2))
        for at in range(0, len(data), 8):
            await send(connection, data[at : at + 8])
            await asyncio.sleep(0.005)
        received = await receive(connection, ended)
        connection.close()
        return received

    async with lab.load(clients=4) as load:
        answers = await asyncio.gather(*(drip() for _ in range(10)))
    assert all(answer.startswith(b"HTTP/1.1 200 OK") and b"[DONE]" in answer for answer in answers)
    assert load.kinds() == {"complete"}
    await lab.at_rest()
