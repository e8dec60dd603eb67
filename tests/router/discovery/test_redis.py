import asyncio
from contextlib import asynccontextmanager

import pytest

from backends.discovery import redis as module
from backends.discovery.redis import RedisSource
from backends.discovery.registration import MOST_BYTES, Registration, encode, registration_key
from backends.discovery.report import SourceReport
from router.config.model import RedisConfig
from router.replicas.connection import connect
from tests.support.redis_server import redis_cluster, redis_server, server_program
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(server_program() is None, reason="there is no redis-server (Debian: redis-server)")
pytest.importorskip("redis", reason="the extra redis is not installed")


@pytest.fixture
def server():
    with redis_server() as server:
        yield server


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 0.02)
    monkeypatch.setattr(module, "_REST", 1)


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@asynccontextmanager
async def following(url, clock=None, prefix="warmroute", fleet="default"):
    config = RedisConfig(url=url)
    report = SourceReport(lambda: None, lambda: 0.0)
    source = RedisSource(lambda: connect(config), prefix, fleet, clock or Clock())
    task = asyncio.ensure_future(source.run(report))
    client = connect(config)
    try:
        yield report, client
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.aclose()


async def register(client, place, ttl_s=60, **fields):
    registration = Registration(url=f"http://{place}", **fields)
    await client.set(registration_key("warmroute", "default", place), encode(registration), px=int(ttl_s * 1000))
    return registration


async def test_registrations_are_workers_while_their_lease_lasts(server):
    clock = Clock()
    async with following(server.url, clock) as (report, client):
        one = await register(client, "10.0.0.1:8000", role="prefill", labels={"zone": "a"})
        await register(client, "[fd00::2]:8000", ttl_s=0.5)
        await eventually(lambda: len(report.workers) == 2)
        assert report.workers["10.0.0.1:8000"] == one
        clock.now_s += 100.0  # long after the start
        await eventually(lambda: report.workers.keys() == {"10.0.0.1:8000"})
        await client.delete(registration_key("warmroute", "default", "10.0.0.1:8000"))
        await eventually(lambda: report.workers == {})
        assert report.answered


async def test_a_changed_registration_is_read_again(server):
    async with following(server.url) as (report, client):
        await register(client, "10.0.0.1:8000")
        await eventually(lambda: report.workers)
        changed = await register(client, "10.0.0.1:8000", weight=2.0)
        await eventually(lambda: report.workers["10.0.0.1:8000"] == changed)


async def test_keys_of_others_are_left_alone(server):
    async with following(server.url) as (report, client):
        await client.set("warmroute:{other}:worker:10.0.0.9:8000", encode(Registration(url="http://10.0.0.9:8000")))
        await client.set("warmroute:{default}:policies", b"{}")
        await register(client, "10.0.0.1:8000")
        await eventually(lambda: report.workers)
        assert (list(report.workers), report.refused) == (["10.0.0.1:8000"], ())


async def test_a_prefix_is_no_pattern(server):
    async with following(server.url, prefix="w*[a]") as (report, client):
        await client.set("war[a]:{default}:worker:10.0.0.9:8000", encode(Registration(url="http://10.0.0.9:8000")))
        await client.set("w*[a]:{default}:worker:10.0.0.1:8000", encode(Registration(url="http://10.0.0.1:8000")))
        await eventually(lambda: report.workers)
        assert (list(report.workers), report.refused) == (["10.0.0.1:8000"], ())


async def test_a_document_that_is_no_registration_is_named(server):
    async with following(server.url) as (report, client):
        await client.set(registration_key("warmroute", "default", "10.0.0.1:8000"), b"{")
        await client.set(
            registration_key("warmroute", "default", "10.0.0.2:8000"), encode(Registration(url="http://h:1"))
        )
        await register(client, "10.0.0.3:8000")
        await eventually(lambda: len(report.refused) == 2 and report.workers)
        assert list(report.workers) == ["10.0.0.3:8000"]
        first, second = sorted(report.refused)
        assert first.startswith("warmroute:{default}:worker:10.0.0.1:8000: not a registration")
        assert second.endswith("the document of another key, warmroute:{default}:worker:h:1")


async def test_of_a_long_value_only_the_beginning_is_read(server):
    async with following(server.url) as (report, client):
        key = registration_key("warmroute", "default", "10.0.0.1:8000")
        await client.set(key, encode(Registration(url="http://10.0.0.1:8000")))
        await client.setrange(key, 50_000_000, b" ")
        await client.hset(registration_key("warmroute", "default", "10.0.0.2:8000"), "url", "http://10.0.0.2:8000")
        await register(client, "10.0.0.3:8000")
        await eventually(lambda: report.refused and report.workers)
        assert list(report.workers) == ["10.0.0.3:8000"]
        assert report.refused == (f"{key}: a registration of {MOST_BYTES + 1} bytes; at most {MOST_BYTES} are read",)
        assert (await client.info("stats"))["total_net_output_bytes"] < 25_000_000


async def test_registrations_that_are_too_long_together_are_a_failure_that_keeps_the_workers(server, monkeypatch):
    monkeypatch.setattr(module, "_MOST_READ_BYTES", 1_000)
    async with following(server.url) as (report, client):
        await register(client, "10.0.0.1:8000")
        await eventually(lambda: report.workers)
        await register(client, "10.0.0.2:8000", labels={"text": "x" * 1_000})
        await eventually(lambda: report.failing_since is not None)
        assert "registrations of more than 1000 bytes" in report.error
        assert list(report.workers) == ["10.0.0.1:8000"]


async def test_after_redis_came_back_empty_workers_have_the_time_of_a_lease(server):
    clock = Clock()
    async with following(server.url, clock) as (report, client):
        await register(client, "10.0.0.1:8000")
        await register(client, "10.0.0.2:8000")
        await eventually(lambda: len(report.workers) == 2)
        clock.now_s += 100.0
        server.kill()
        await eventually(lambda: report.failing_since is not None)
        assert len(report.workers) == 2
        server.restart()
        await eventually(lambda: report.failing_since is None)
        await client.connection_pool.disconnect()
        await register(client, "10.0.0.1:8000")
        await asyncio.sleep(0.2)
        assert len(report.workers) == 2, "the other may still register again"
        clock.now_s += 15.1
        await eventually(lambda: list(report.workers) == ["10.0.0.1:8000"])


async def test_a_paused_redis_is_a_failure_that_keeps_the_workers(server):
    clock = Clock()
    async with following(server.url, clock) as (report, client):
        await register(client, "10.0.0.1:8000")
        await eventually(lambda: report.workers)
        await client.execute_command("CLIENT", "PAUSE", "800")
        await eventually(lambda: report.failing_since is not None)
        assert "Timeout" in report.error and list(report.workers) == ["10.0.0.1:8000"]
        await eventually(lambda: report.failing_since is None)


async def test_a_young_redis_is_not_complete(server):
    """A successor keeps the workers that its predecessor had."""
    clock = Clock()
    async with following(server.url, clock) as (report, client):
        await register(client, "10.0.0.1:8000")
        await eventually(lambda: report.workers)
        assert not report.answered
        clock.now_s += 15.1
        await eventually(lambda: report.answered)


async def test_two_thousand_registrations_are_read_within_a_second(server):
    async with following(server.url) as (report, client):
        keys = {f"10.0.{number // 250}.{number % 250}:8000": None for number in range(2_000)}
        async with client.pipeline(transaction=False) as pipe:
            for place in keys:
                document = encode(Registration(url=f"http://{place}"))
                pipe.set(registration_key("warmroute", "default", place), document, ex=60)
            await pipe.execute()
        await eventually(lambda: len(report.workers) == 2_000, 1.0)


async def test_a_cluster_is_read_too():
    with redis_cluster() as url:
        async with following(url) as (report, client):
            await register(client, "10.0.0.1:8000")
            await register(client, "10.0.0.2:8000")
            await eventually(lambda: len(report.workers) == 2)
            await client.delete(registration_key("warmroute", "default", "10.0.0.1:8000"))


async def test_no_redis_is_a_failure_in_words():
    async with following("redis://127.0.0.1:1") as (report, _):
        await eventually(lambda: report.failing_since is not None)
        assert report.error.startswith("Redis: ConnectionError: ")


class Swallowing:
    """A client whose library answers a cancellation with an error of its own."""

    def __init__(self):
        self.asked = asyncio.Event()

    async def info(self, section):
        self.asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("Connection closed by server.") from None

    async def aclose(self):
        pass


async def test_a_source_ends_although_the_library_swallows_its_cancellation():
    client = Swallowing()
    source = RedisSource(lambda: client, "warmroute", "default")
    task = asyncio.ensure_future(source.run(SourceReport(lambda: None, lambda: 0.0)))
    await client.asked.wait()
    task.cancel()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()
