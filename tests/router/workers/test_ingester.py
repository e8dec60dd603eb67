"""The process that ingests KV events and its followers, over a real Unix socket, in one event loop."""

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace

import pytest

from backends.worker import KvEventSource
from policies.view import Residency
from router.process.children.child_process import listening_at
from router.residency.followed import FollowedIndex
from router.residency.residency_map import ResidencyMap
from router.workers import ingest_line, ingest_messages, table_files
from router.workers import ingester as ingester_module
from router.workers.ingest_line import IngestLine
from router.workers.ingester import Ingester
from tests.support.waiting import eventually

FIRST, SECOND = list(range(100, 108)), list(range(200, 208))


@pytest.fixture
async def publisher(wire, context):
    made = wire.Publisher(context)
    yield made
    made.close()


@pytest.fixture
def listener(tmp_path):
    with listening_at(tmp_path / "events.sock") as made:
        yield made


@asynccontextmanager
async def ingesting(listener, tmp_path):
    ingester = Ingester(listener.dup(), tmp_path / "tables")
    await ingester.start()
    try:
        yield ingester
    finally:
        await ingester.aclose()


@asynccontextmanager
async def following(publisher, tmp_path, metrics):
    """A gateway process: a residency map, its line, and one followed publisher."""
    index = FollowedIndex()
    residency = ResidencyMap(followed=index)
    residency.add(0, "w:1", 4, 100, True)
    line = IngestLine(tmp_path / "events.sock", residency, index, metrics)
    line.start()
    lost = []
    source = KvEventSource(0, publisher.endpoint, publisher.replay_endpoint, "kv")
    followed = line.publisher(slot=0, worker="w:1", source=source, on_lost=lambda: lost.append(1))
    followed.start()
    try:
        yield SimpleNamespace(residency=residency, line=line, publisher=followed, lost=lost, index=index)
    finally:
        followed.close()
        await line.aclose()


async def settled(wire, gateway, tokens, expected=8):
    def reached():
        match = gateway.residency.match(wire.prompt_of([*tokens, 1]), [0])[0]
        return (match.tokens, match.residency) == (expected, Residency.EXACT)

    await eventually(reached)


def counted(gateway):
    return gateway.publisher.statistics()["batches"] == 2


async def test_all_followers_see_what_one_process_ingests(wire, publisher, listener, tmp_path, metrics, monkeypatch):
    monkeypatch.setattr(ingester_module, "FIGURES_S", 0.02)
    publisher.publish(wire.stored(FIRST, 1))
    async with ingesting(listener, tmp_path) as ingester, following(publisher, tmp_path, metrics) as one:
        await settled(wire, one, FIRST)
        assert metrics.replays == ["filled"]
        async with following(publisher, tmp_path, metrics) as two:
            await settled(wire, two, FIRST)
            publisher.publish(wire.stored(SECOND, 11))
            publisher.publish({"type": "BlockRemoved", "block_hashes": [1, 2], "medium": "GPU"})
            for gateway in (one, two):
                await settled(wire, gateway, SECOND)
                await settled(wire, gateway, FIRST, 0)
                await eventually(partial(counted, gateway))
                assert gateway.residency.statistics()["slots"][0]["removed_blocks"] == 2
            assert publisher.asked == [0]
        await eventually(lambda: len(ingester.connections) == 1)


async def test_the_next_process_takes_over_by_a_replay(wire, publisher, listener, tmp_path, metrics):
    async with following(publisher, tmp_path, metrics) as gateway:
        async with ingesting(listener, tmp_path):
            publisher.publish(wire.stored(FIRST, 1))
            await settled(wire, gateway, FIRST)
        await eventually(lambda: gateway.line.pid is None)
        assert gateway.residency.state(0).residency is Residency.UNKNOWN
        assert not gateway.lost  # the worker's own link may be up
        publisher.publish(wire.stored(SECOND, 11))
        async with ingesting(listener, tmp_path):
            await settled(wire, gateway, FIRST)
            await settled(wire, gateway, SECOND)


async def test_a_lost_link_to_the_worker_is_known_to_the_followers(wire, publisher, listener, tmp_path, metrics):
    async with ingesting(listener, tmp_path), following(publisher, tmp_path, metrics) as gateway:
        publisher.publish(wire.stored(FIRST, 1))
        await settled(wire, gateway, FIRST)
        assert gateway.publisher.linked
        publisher.close()
        await eventually(lambda: gateway.lost)
        assert not gateway.publisher.linked


async def test_a_follower_that_reads_too_slowly_starts_again(wire, publisher, listener, tmp_path, metrics, monkeypatch):
    async with ingesting(listener, tmp_path) as ingester, following(publisher, tmp_path, metrics) as gateway:
        publisher.publish(wire.stored(FIRST, 1))
        await settled(wire, gateway, FIRST)
        with monkeypatch.context() as patched:
            patched.setattr(ingester_module, "MAX_UNREAD_BYTES", -1)
            publisher.publish(wire.stored(SECOND, 11))
            await eventually(lambda: gateway.line.pid is None)
        await settled(wire, gateway, SECOND)
        assert len(ingester.connections) == 1


async def test_a_publisher_that_nobody_follows_is_left(wire, publisher, listener, tmp_path, metrics, monkeypatch):
    monkeypatch.setattr(ingester_module, "LINGER_S", 0.02)
    async with ingesting(listener, tmp_path) as ingester, following(publisher, tmp_path, metrics) as gateway:
        publisher.publish(wire.stored(FIRST, 1))
        await settled(wire, gateway, FIRST)
        gateway.publisher.close()
        await eventually(lambda: not ingester.tables._taken)


async def test_a_publisher_followed_again_soon_needs_no_replay(wire, publisher, listener, tmp_path, metrics):
    async with ingesting(listener, tmp_path):
        async with following(publisher, tmp_path, metrics) as gateway:
            publisher.publish(wire.stored(FIRST, 1))
            await settled(wire, gateway, FIRST)
            gateway.publisher.close()
            assert gateway.residency.state(0).residency is Residency.APPROXIMATE
            assert gateway.residency.match(wire.prompt_of([*FIRST, 1]), [0])[0].tokens == 0
            publisher.publish(wire.stored(SECOND, 11))
        async with following(publisher, tmp_path, metrics) as gateway:
            await settled(wire, gateway, FIRST)
            await settled(wire, gateway, SECOND)
        assert publisher.asked == [0]


async def test_a_view_without_room_is_written_again_later(wire, publisher, listener, tmp_path, metrics, monkeypatch):
    monkeypatch.setattr(ingester_module, "AGAIN_S", 0.05)

    def refuse(size):
        raise OSError("no room")

    tokens = list(range(1_000, 13_000))
    async with ingesting(listener, tmp_path) as ingester, following(publisher, tmp_path, metrics) as gateway:
        gateway.residency.configure(0, capacity_blocks=100_000)
        publisher.publish(wire.stored(FIRST, 1))
        await settled(wire, gateway, FIRST)
        (ingested,) = ingester._publishers.values()
        with monkeypatch.context() as full:
            full.setattr(ingester._files, "make", refuse)
            publisher.publish(wire.stored(tokens, 100))
            await eventually(lambda: ingested.full)
            publisher.publish({"type": "BlockRemoved", "block_hashes": [1, 2], "medium": "GPU"})
            async with following(publisher, tmp_path, metrics) as late:
                await eventually(lambda: ingested.joining)
                assert late.residency.state(0).residency is Residency.APPROXIMATE
        await settled(wire, gateway, tokens, 12_000)
        await settled(wire, gateway, FIRST, 0)


async def test_a_follower_that_is_cut_off_leaves_no_request_behind(wire, publisher, listener, tmp_path, metrics):
    async with ingesting(listener, tmp_path) as ingester, following(publisher, tmp_path, metrics) as gateway:
        await eventually(lambda: gateway.publisher.linked)
        (ingested,) = ingester._publishers.values()
        gateway.publisher.recomputes(7, 1)
        await eventually(lambda: ingested.view.event_view.view.recomputing)
        gateway.line._transport.abort()
        await eventually(lambda: not ingested.view.event_view.view.recomputing)


async def test_a_silent_process_is_left(wire, publisher, listener, tmp_path, metrics, monkeypatch):
    monkeypatch.setattr(ingest_line, "SILENT_S", 0.1)
    monkeypatch.setattr(ingester_module, "FIGURES_S", 0.02)
    async with ingesting(listener, tmp_path) as ingester, following(publisher, tmp_path, metrics) as gateway:
        await eventually(lambda: gateway.publisher.linked)
        (before,) = ingester.connections
        await asyncio.sleep(0.2)
        assert ingester.connections == {before}
        ingester._telling.cancel()
        await eventually(lambda: gateway.line.pid is None)
        assert not gateway.publisher.linked
        assert gateway.residency.state(0).residency is not Residency.EXACT


async def test_a_process_that_reads_nothing_is_left(wire, publisher, listener, tmp_path, metrics, monkeypatch):
    async with ingesting(listener, tmp_path) as ingester, following(publisher, tmp_path, metrics) as gateway:
        await eventually(lambda: gateway.publisher.linked)
        (connection,) = ingester.connections
        connection._transport.pause_reading()
        monkeypatch.setattr(ingest_line, "MAX_UNSENT_BYTES", 100)
        for _ in range(20):
            gateway.publisher.thin(range(10_000))
        await eventually(lambda: gateway.line.pid is None)


async def test_one_proof_serves_all_followers(wire, publisher, listener, tmp_path, metrics):
    async with ingesting(listener, tmp_path), following(publisher, tmp_path, metrics) as one:
        publisher.publish(wire.stored(FIRST, 1))
        await settled(wire, one, FIRST)
        async with following(publisher, tmp_path, metrics) as two:
            await settled(wire, two, FIRST)
            asked = len(publisher.asked)
            for gateway in (one, two, one):
                gateway.publisher.relearn()
                await eventually(lambda: len(publisher.asked) > asked)
                await settled(wire, gateway, FIRST)
                await asyncio.sleep(0.05)
            assert len(publisher.asked) == asked + 1


async def test_relearning_ends_once_no_follower_misses_a_block(wire, publisher, listener, tmp_path, metrics):
    async with ingesting(listener, tmp_path) as ingester, following(publisher, tmp_path, metrics) as one:
        await eventually(lambda: one.publisher.linked)
        (ingested,) = ingester._publishers.values()
        (first,) = ingested.followers
        async with following(publisher, tmp_path, metrics) as two:
            await eventually(lambda: two.publisher.linked)
            ingested.view.event_view._lose("lost")
            publisher.publish(wire.stored(FIRST, 1))
            await eventually(lambda: one.residency.match(wire.prompt_of([*FIRST, 1]), [0])[0].tokens == 8)
            ingester.take(first, ingest_messages.Relearned(one.publisher.channel))
            publisher.publish(wire.stored(SECOND, 11))
            await eventually(lambda: one.residency.match(wire.prompt_of([*SECOND, 1]), [0])[0].tokens == 8)
            assert ingested.view.event_view.loss
        await eventually(lambda: not ingested.view.event_view.loss)


async def test_a_full_table_is_replaced_for_all(wire, publisher, listener, tmp_path, metrics):
    async with ingesting(listener, tmp_path) as ingester, following(publisher, tmp_path, metrics) as gateway:
        gateway.residency.configure(0, capacity_blocks=100_000)
        await eventually(lambda: gateway.publisher.linked)
        before = ingester.made[None]
        tokens = list(range(12_000))
        publisher.publish(wire.stored(tokens, 1))
        await settled(wire, gateway, tokens, 12_000)
        assert ingester.made[None].places > before.places


async def test_without_room_in_memory_the_tables_are_in_the_folder(
    wire, publisher, listener, tmp_path, metrics, monkeypatch
):
    full = tmp_path / "full"
    full.touch()
    monkeypatch.setattr(table_files, "MEMORY", full)
    async with ingesting(listener, tmp_path) as ingester, following(publisher, tmp_path, metrics) as gateway:
        publisher.publish(wire.stored(FIRST, 1))
        await settled(wire, gateway, FIRST)
        assert ingester.made[None].path.startswith(str(tmp_path / "tables"))
    assert not list((tmp_path / "tables").iterdir())


async def test_the_tables_leave_no_memory_behind(wire, publisher, listener, tmp_path, metrics):
    async with ingesting(listener, tmp_path), following(publisher, tmp_path, metrics) as gateway:
        publisher.publish(wire.stored(FIRST, 1))
        await settled(wire, gateway, FIRST)
    assert not (table_files.MEMORY / "tables").exists()


def test_a_folder_that_others_may_write_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "MEMORY", tmp_path / "memory")
    shared = tmp_path / "memory" / "tables"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    path, _ = table_files.TableFiles(tmp_path / "tables").make(4_096)
    assert path.startswith(str(tmp_path / "tables"))
    assert not list(shared.iterdir())
