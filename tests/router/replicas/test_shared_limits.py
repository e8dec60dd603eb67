"""Limits of tenants over a real Redis: two replicas use one bucket, and each goes on by its setting without Redis."""

import asyncio
import os
import signal

import msgspec
import pytest

from router.config.model import Config
from router.limits.caller import Charge
from router.limits.registry import RateLimits
from router.process.shared_memory.replica_rows import ReplicaLedger
from router.replicas.replica import Replica
from tests.support.redis import needs_redis
from tests.support.redis_server import redis_server
from tests.support.waiting import eventually

pytestmark = needs_redis


class Gateway:
    def __init__(self, url, fleet, alone="whole"):
        limits = {"alone": alone, "tenants": {"default": {"requests_per_minute": 6, "burst_requests": 60}}}
        config = msgspec.convert({"redis": {"url": url, "fleet": fleet}, "limits": limits}, Config)
        self.shared = ReplicaLedger()
        self.limits = RateLimits(config.limits, self.shared.limits)
        self.replica = Replica(config, rows=self.shared.rows, use=self.shared.use)

    async def __aenter__(self):
        self.replica.start()
        return self

    async def __aexit__(self, *_):
        await self.replica.aclose()
        self.shared.close()

    @property
    def left(self) -> float:
        (account,) = self.limits.statistics([(None, None)], asyncio.get_running_loop().time())
        return account["requests"]["remaining"]

    @property
    def running(self) -> int:
        (account,) = self.limits.statistics([(None, None)], asyncio.get_running_loop().time())
        return account["running"]

    @property
    def others(self) -> int:
        return len(self.replica.channel.senders.replicas)

    def admit(self, count: int) -> list[Charge]:
        now_s = asyncio.get_running_loop().time()
        answers = [self.limits.of(None, None).admit(0, now_s) for _ in range(count)]
        return [each for each in answers if isinstance(each, Charge)]


async def meet(*gateways: Gateway) -> None:
    await eventually(lambda: all(each.others == len(gateways) - 1 for each in gateways))


async def test_two_replicas_admit_one_limit_together(redis):
    async with Gateway(redis.url, "limits") as one, Gateway(redis.url, "limits") as two:
        await meet(one, two)
        charges = one.admit(40)
        assert len(charges) == 40
        await eventually(lambda: two.left < 25 and two.running == 40)
        assert 20 <= len(two.admit(60)) < 25
        await eventually(lambda: one.left < 5)
        for charge in charges:
            charge.settle(0, asyncio.get_running_loop().time(), served=True)
        await eventually(lambda: two.running < 25)


async def test_a_restarted_replica_learns_what_is_left(redis):
    async with Gateway(redis.url, "again") as one:
        async with Gateway(redis.url, "again") as two:
            await meet(one, two)
            two.admit(50)
            await eventually(lambda: one.left < 20)
        async with Gateway(redis.url, "again") as again:
            await eventually(lambda: again.left < 20)
            assert again.running == 0


@pytest.mark.parametrize(("alone", "least", "most"), [("whole", 60, 61), ("share", 30, 31)])
async def test_without_redis_a_replica_admits_what_the_setting_says(alone, least, most):
    with redis_server() as server:
        async with Gateway(server.url, alone, alone) as one, Gateway(server.url, alone, alone) as two:
            await meet(one, two)
            os.kill(server.process.pid, signal.SIGSTOP)
            try:
                await eventually(lambda: one.replica.line.alone and not one.others and one.left < most)
                assert least <= len(one.admit(99)) <= most
            finally:
                os.kill(server.process.pid, signal.SIGCONT)
            await meet(one, two)
            await eventually(lambda: two.left < 45)
