import asyncio
import os
import signal
import time
from types import SimpleNamespace

import pytest

from router.config.model import Config, RedisConfig
from router.placement.load.ledger import LoadAccount
from router.placement.load.running import LoadReservation
from router.process.shared_memory.replica_rows import ReplicaLedger
from router.replicas import replica as replica_module
from router.replicas.leases import Registered
from router.replicas.messages import StateVersion
from router.replicas.replica import Replica
from tests.support.redis import needs_redis
from tests.support.redis_server import SERVERS, redis_cluster, redis_server, sentinels, server_program
from tests.support.waiting import eventually

pytestmark = needs_redis


class Gateway:
    def __init__(self, url: str, fleet: str = "default") -> None:
        self.shared = ReplicaLedger()
        self.replica = Replica(Config(redis=RedisConfig(url=url, fleet=fleet)), rows=self.shared.rows)
        self.account = LoadAccount()
        self.account.shared = self.shared.ledger.account("a:1")

    @property
    def others(self) -> int:
        return self.account.shared.other_processes().running_requests

    async def __aenter__(self):
        self.replica.start()
        return self

    async def __aexit__(self, *_):
        await self.replica.aclose()
        self.shared.close()


async def sharing(one, two) -> None:
    """Wait until each sees what the other reserves next."""
    await eventually(lambda: not one.replica.line.alone and not two.replica.line.alone)
    for sender, receiver in ((one, two), (two, one)):
        sender.account.reserve(LoadReservation(1, 2, time.monotonic()))
        await eventually(lambda s=sender, r=receiver: r.others == s.account.running_requests)


@pytest.mark.parametrize("program", SERVERS)
async def test_load_is_shared_over_each_kind_of_server(program):
    if server_program(program) is None:
        pytest.skip(f"{program} is not installed")
    with redis_server(program=program) as server:
        async with Gateway(server.url) as one, Gateway(server.url) as two:
            await sharing(one, two)
            assert one.replica.channel.malformed == 0
            assert one.replica.channel.lag_s < 1.0


async def test_load_is_shared_over_a_cluster():
    with redis_cluster() as url:
        async with Gateway(url) as one, Gateway(url) as two:
            await sharing(one, two)


async def test_fleets_on_one_server_do_not_mix(redis):
    async with Gateway(redis.url, "a") as one, Gateway(redis.url, "b") as two:
        await eventually(lambda: not one.replica.line.alone and not two.replica.line.alone)
        one.account.reserve(LoadReservation(1, 2, time.monotonic()))
        await asyncio.sleep(0.1)
        assert two.others == 0 and not one.replica.channel.senders.replicas


async def test_leases_name_all_replicas_and_end_with_them(redis, monkeypatch):
    monkeypatch.setattr(replica_module, "RENEW_S", 0.2)
    async with Gateway(redis.url, "leases") as one:
        async with Gateway(redis.url, "leases") as two:
            await eventually(lambda: len(two.replica.registered) == 2 and not two.replica.line.alone)
            await eventually(lambda: len(one.replica.registered) == 2)
        leases = one.replica._leases
        assert [each.id for each in await leases.all()] == [one.replica.id]


async def test_replicas_with_other_changes_or_without_a_voice_are_apart(redis):
    async with Gateway(redis.url, "apart") as one, Gateway(redis.url, "apart") as two:
        await eventually(lambda: one.replica.channel.senders.replicas and not one.replica.line.alone)
        replica = one.replica
        replica.sharing = SimpleNamespace(version=StateVersion())
        assert replica.apart() == []
        replica.sharing = SimpleNamespace(version=StateVersion(3, "x"))
        replica.registered = []  # its lease may be read any time
        assert replica.apart() == [f"{two.replica.id} has other changes"]
        replica.sharing = SimpleNamespace(version=StateVersion())
        replica.registered = [Registered("gone", "gw9:8000", "1", 1, 0.0)]
        assert replica.apart() == ["gw9:8000 is not heard"]
        replica.sharing = None


async def test_a_paused_server_leaves_replicas_alone_and_they_heal():
    with redis_server() as server:
        async with Gateway(server.url) as one, Gateway(server.url) as two:
            await sharing(one, two)
            os.kill(server.process.pid, signal.SIGSTOP)
            await eventually(lambda: one.replica.line.alone and two.others == 0)
            assert one.replica.line.problem
            os.kill(server.process.pid, signal.SIGCONT)
            await sharing(one, two)


async def test_a_server_that_comes_back_empty_heals_within_five_seconds():
    with redis_server() as server:
        async with Gateway(server.url) as one, Gateway(server.url) as two:
            await sharing(one, two)
            server.kill()
            await eventually(lambda: one.replica.line.alone)
            server.restart()
            await sharing(one, two)


async def test_a_failover_by_sentinel_heals_within_five_seconds():
    with sentinels() as found:
        async with Gateway(found.url) as one, Gateway(found.url) as two:
            await sharing(one, two)
            found.master.kill()
            await eventually(lambda: one.replica.line.alone)
            began_s = time.monotonic()
            await sharing(one, two)
            assert time.monotonic() - began_s < 5.0


async def test_a_server_that_never_answers_stops_nothing():
    listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with Gateway(f"redis://127.0.0.1:{port}") as one:
        await eventually(lambda: one.replica.line.errors >= 2)
        assert one.replica.line.alone
    listener.close()


async def test_nonsense_on_the_channel_is_counted(redis):
    async with Gateway(redis.url, "nonsense") as one:
        await eventually(lambda: not one.replica.line.alone)
        for message in (b"", b"\x93\x01", b"x" * 1_000):
            await one.replica._client.publish("warmroute:{nonsense}:channel", message)
        await eventually(lambda: one.replica.channel.malformed == 3)
        assert not one.replica.line.alone
