import asyncio
import socket
import time

import psutil
import pytest

from loadtest.drive.seen import Kind

pytestmark = [pytest.mark.slow, pytest.mark.measures]

LIMIT = 40


async def knock(lab):
    """Connect without waiting for the accept; return None if that fails."""
    made = socket.socket()
    made.setblocking(False)
    try:
        async with asyncio.timeout(2):
            await asyncio.get_running_loop().sock_connect(made, lab.address)
    except OSError:
        made.close()
        return None
    return made


def is_open(connection):
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


async def test_a_flood_beyond_the_limit_is_shut_out_and_costs_the_others_nothing(own_lab):
    lab = await own_lab(workers=2, config={"limits": {"max_connections": LIMIT}})
    # one kept connection per client, so that the load needs no new connection during the flood
    async with lab.load(clients=6, keep=True) as load:
        flood = [made for made in await asyncio.gather(*(knock(lab) for _ in range(500))) if made is not None]
        await lab.eventually(lambda: sum(map(is_open, flood)) <= LIMIT)
        since = len(load.seen)
        await lab.eventually(lambda: len(load.seen) > since + 6)
        assert sum(map(is_open, flood)) >= LIMIT - 6 - 1
        for made in flood:
            made.close()
    assert load.kinds() == {"complete"}
    assert (await lab.ask(tokens=2)).kind is Kind.COMPLETE
    await lab.at_rest()


async def test_few_descriptors_are_kept_for_workers_and_the_admin_port(own_lab):
    """The gateway lowers max_connections to the number that the descriptors carry, so that its other parts always have
    some.
    """
    lab = await own_lab(workers=2, open_files=90)
    gateway = psutil.Process(lab.fleet.gateway.pid)
    flood = [made for made in await asyncio.gather(*(knock(lab) for _ in range(300))) if made is not None]
    await lab.eventually(lambda: sum(map(is_open, flood)) <= 22)
    busy = gateway.cpu_times()
    began_s = time.monotonic()
    await asyncio.sleep(2)
    spent_s = sum(gateway.cpu_times()[:2]) - sum(busy[:2])
    assert spent_s < 0.5 * (time.monotonic() - began_s)
    assert gateway.num_fds() < 85
    async with lab.load(clients=4, keep=True) as load:
        pass
    assert load.kinds() == {"complete"}
    assert set((await lab.admin.states()).values()) == {"ready"}
    for made in flood:
        made.close()
    await lab.at_rest()
