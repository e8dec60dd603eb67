import asyncio

import psutil
import pytest

pytestmark = pytest.mark.nightly


@pytest.mark.timeout(240)
async def test_two_hundred_streams_for_a_minute_leak_nothing(own_lab):
    lab = await own_lab(workers=2, time_scale=8.0)
    gateway = psutil.Process(lab.fleet.gateway.pid)
    async with lab.load(clients=200, tokens=40) as load:
        await asyncio.sleep(10)
    assert load.kinds() == {"complete"}
    await lab.at_rest()
    rss_bytes = gateway.memory_info().rss
    async with lab.load(clients=200, tokens=40) as load:
        await asyncio.sleep(60)
    assert load.kinds() == {"complete"}
    await lab.at_rest()
    assert gateway.memory_info().rss - rss_bytes < 30e6
