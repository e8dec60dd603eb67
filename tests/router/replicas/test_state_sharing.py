"""The admin API's changes of one gateway are obeyed by all, and the higher version wins after Redis was away."""

import asyncio
import os
import signal
import time

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from router.config.model import Config, PolicyConfig, RedisConfig, WorkerConfig
from router.control.change import Change, NotAppliedError
from router.control.control import Control
from router.control.sharing import OvertakenError
from router.control.start import Sources, initial
from router.control.state.edits import add_worker, set_maintenance, set_policy
from router.process.shared_memory.replica_rows import ReplicaLedger
from router.replicas import state_sharing
from router.replicas.replica import Replica
from tests.support.redis import needs_redis
from tests.support.redis_server import redis_server
from tests.support.waiting import eventually

pytestmark = needs_redis


class Gateway:
    """A replica with its own settings file and its control; what it applies is kept."""

    def __init__(self, url: str, fleet: str, workers=("http://a:1", "http://a:2"), kept=None) -> None:
        redis = RedisConfig(url=url, fleet=fleet)
        self.config = Config(redis=redis, workers=tuple(WorkerConfig(url=each) for each in workers))
        self.read = self.config
        self.refuses: str | None = None
        self.control = Control(Sources(self.config, lambda: self.read), initial(self.config, kept), self._apply)
        self.shared = ReplicaLedger()
        self.replica = Replica(self.config, rows=self.shared.rows, control=self.control)

    async def _apply(self, state):
        self.applied = state.settings

    async def __aenter__(self):
        await self.control.opened()
        self.replica.start()
        await eventually(lambda: not self.replica.line.alone)
        return self

    async def __aexit__(self, *_):
        await self.replica.aclose()
        self.shared.close()

    @property
    def rule(self) -> str:
        return self.control.state.settings.policy.rule

    @property
    def number(self) -> int:
        return self.control.shared.number

    @property
    def drained(self) -> list[str]:
        return [name for name, one in self.control.state.settings.workers.items() if one.maintenance]

    async def choose(self, rule: str, if_match: str | None = None):
        change = Change(set_policy(PolicyConfig(rule=rule)), f"chose {rule}", who="ann", if_match=if_match)
        return await self.control.make(change)

    async def drain(self, worker: str):
        return await self.control.make(Change(set_maintenance(worker, True), f"drained {worker}"))


async def test_a_change_on_one_gateway_is_obeyed_by_the_other_within_a_second(redis):
    async with Gateway(redis.url, "obeyed") as one, Gateway(redis.url, "obeyed") as two:
        outcome = await one.choose("lpwl")
        assert outcome.shared
        began_s = time.monotonic()
        await eventually(lambda: two.rule == "lpwl")
        assert time.monotonic() - began_s < 1.0
        assert two.applied.policy.rule == "lpwl"
        revision = two.control.history.revisions[-1]
        assert (revision.source, revision.who) == ("fleet", "ann") and "chose lpwl (on " in revision.what


async def test_changes_lie_over_each_gateways_own_file(redis):
    async with (
        Gateway(redis.url, "own", ("http://a:1", "http://a:2")) as one,
        Gateway(redis.url, "own", ("http://a:2", "http://b:9")) as two,
    ):
        await one.control.make(Change(set_maintenance("a:1", True), "drained a:1"))
        await one.control.make(Change(set_maintenance("a:2", True), "drained a:2"))
        await one.control.make(Change(add_worker(WorkerConfig(url="http://c:3")), "added c:3"))
        await eventually(lambda: two.number == 3)
        workers = two.control.state.settings.workers
        assert list(workers) == ["a:2", "b:9", "c:3"]
        assert workers["a:2"].maintenance and not workers["b:9"].maintenance


async def test_a_gateway_that_joins_takes_the_changes_on(redis):
    async with Gateway(redis.url, "joins") as one:
        await one.choose("lpwl")
        async with Gateway(redis.url, "joins") as late:
            await eventually(lambda: late.rule == "lpwl" and late.number == 1)


async def test_of_two_changes_at_once_the_second_is_made_over_the_first(redis):
    async with Gateway(redis.url, "race") as one, Gateway(redis.url, "race") as two:
        await asyncio.gather(one.choose("lpwl"), two.drain("a:1"))
        await eventually(lambda: one.rule == two.rule == "lpwl" and one.drained == two.drained == ["a:1"])
        assert one.number == two.number == 2


async def test_the_same_change_on_two_gateways_at_once_is_made_once(redis):
    async with Gateway(redis.url, "same") as one, Gateway(redis.url, "same") as two:
        outcomes = await asyncio.gather(one.choose("lpwl"), two.choose("lpwl"))
        assert all(outcome.shared for outcome in outcomes)
        await eventually(lambda: one.number == two.number == 1)


async def test_of_two_changes_of_one_version_at_once_one_is_refused_with_the_reason(redis):
    async with Gateway(redis.url, "tags") as one, Gateway(redis.url, "tags") as two:
        changes = (each.choose(rule, each.control.state.tag) for each, rule in ((one, "lpwl"), (two, "random")))
        done = await asyncio.gather(*changes, return_exceptions=True)
        refused = [each for each in done if isinstance(each, OvertakenError)]
        assert len(refused) == 1 and "shared version 1" in str(refused[0])
        await eventually(lambda: one.rule == two.rule != "marginal_cost")


async def test_a_redis_that_comes_back_empty_gets_the_highest_version_back():
    with redis_server() as server:
        async with Gateway(server.url, "empty") as one, Gateway(server.url, "empty") as two:
            await one.choose("lpwl")
            await eventually(lambda: two.number == 1)
            server.kill()
            await eventually(lambda: one.replica.line.alone)
            server.restart()
            await eventually(lambda: not one.replica.line.alone)
            async with Gateway(server.url, "empty") as late:
                await eventually(lambda: late.rule == "lpwl")


async def test_a_change_made_while_redis_is_away_is_marked_and_shared_on_return():
    with redis_server() as server:
        async with Gateway(server.url, "apart") as one, Gateway(server.url, "apart") as two:
            os.kill(server.process.pid, signal.SIGSTOP)
            await eventually(lambda: one.replica.line.alone)
            outcome = await one.choose("lpwl")
            assert outcome.shared is False and one.rule == "lpwl"
            assert "while Redis did not answer" in one.control.history.revisions[-1].what
            os.kill(server.process.pid, signal.SIGCONT)
            await eventually(lambda: two.rule == "lpwl")
            await eventually(lambda: one.control.shared == two.control.shared)


async def test_of_changes_made_apart_the_higher_version_wins_and_the_loss_is_named():
    with redis_server() as server:
        async with Gateway(server.url, "both") as one, Gateway(server.url, "both") as two:
            os.kill(server.process.pid, signal.SIGSTOP)
            await eventually(lambda: one.replica.line.alone and two.replica.line.alone)
            await one.control.make(Change(set_maintenance("a:1", True), "drained a:1"))
            await two.choose("lpwl")
            await two.choose("random")
            os.kill(server.process.pid, signal.SIGCONT)
            await eventually(lambda: one.rule == "random" and one.control.shared == two.control.shared)
            assert not one.control.state.settings.workers["a:1"].maintenance
            named = [each.what for each in one.control.history.revisions]
            assert any("made here alone: workers[a:1].maintenance" in what for what in named)


async def test_changes_that_are_not_valid_here_are_refused_and_logged(redis, caplog):
    async with Gateway(redis.url, "refused") as one, Gateway(redis.url, "refused") as two:

        async def refuse(state):
            raise NotAppliedError("no")

        two.control._apply = refuse
        await one.choose("lpwl")
        await eventually(lambda: "cannot be made here" in caplog.text)
        assert two.rule == "marginal_cost" and two.number == 0


async def test_the_version_outlives_a_restart_with_its_state(redis):
    async with Gateway(redis.url, "kept") as one:
        await one.choose("lpwl")
        stored = one.control.stored
    with redis_server() as fresh:
        async with Gateway(fresh.url, "kept", kept=stored) as again, Gateway(fresh.url, "kept") as other:
            await eventually(lambda: other.rule == "lpwl")
            assert again.number == 1


async def test_a_reload_that_replaces_a_change_ends_it_for_the_fleet(redis):
    async with Gateway(redis.url, "reload") as one, Gateway(redis.url, "reload") as two:
        await one.choose("lpwl")
        await eventually(lambda: two.rule == "lpwl")
        one.read = replace(one.config, policy=PolicyConfig(rule="random"))
        await one.control.reload()
        assert one.rule == "random"
        await eventually(lambda: two.rule == "marginal_cost")


def document_of(before: bytes, number=9) -> bytes:
    """A document with one change to no valid policy, whose earlier value is the JSON text `before`."""
    return b'{"number":%d,"change":"x","changes":[{"path":["policy"],"before":%b,"after":7}]}' % (number, before)


async def write(gateway, body, number=9):
    fields = {"number": number, "change": "x", "body": body}
    async with Redis.from_url(gateway.config.redis.url) as client:  # without the short time limit of a gateway's calls
        await client.hset(gateway.replica.sharing._key, mapping=fields)


BAD = [
    (document_of(b"[" + b"1e308," * 200_000 + b"1]"), "at most 1048576 are read"),
    (document_of(b'"' + b"x" * 20_000_000 + b'"'), "at most 1048576 are read"),
    (document_of(b"[" * 100_000), "no document of shared changes"),
    (b"\xff", "no document of shared changes"),
    (b"{", "no document of shared changes"),
    (document_of(b"1", number=1 << 54), "no document of shared changes"),
]


@pytest.fixture
def looking(monkeypatch):
    """Look at the document without a pause."""
    monkeypatch.setattr(state_sharing, "LOOK_S", 0.1)


@pytest.mark.usefixtures("looking")
@pytest.mark.parametrize(("body", "said"), BAD, ids=[said[:8] + str(n) for n, (_, said) in enumerate(BAD)])
async def test_a_document_that_cannot_be_used_changes_nothing_and_is_named_once(redis, caplog, body, said):
    async with Gateway(redis.url, f"bad{hash(body)}") as one:
        await write(one, body)
        await eventually(lambda: any("cannot be shared" in record.message for record in caplog.records))
        for _ in range(3):
            assert await one.replica.sharing._look()
        (record,) = [record for record in caplog.records if "cannot be shared" in record.message]
        assert said in record.reason
        assert one.rule == "marginal_cost"
        outcome = await one.choose("lpwl")
        assert (one.rule, outcome.shared) == ("lpwl", False)


def test_numbers_that_are_slow_to_read_hold_the_loop_briefly():
    body = document_of(b"[" + b"1e308," * 170_000 + b"1]")
    assert 1_000_000 < len(body) < state_sharing.MOST_BYTES
    began_s = time.thread_time()
    assert state_sharing._decoded(body).number == 9
    assert time.thread_time() - began_s < 1.0, "msgspec alone takes 2 s on a quiet machine"


@pytest.mark.usefixtures("looking")
async def test_a_document_is_decoded_once_and_a_refused_one_is_not_tried_again(redis, caplog, monkeypatch):
    decoded = []
    decode = state_sharing._decoded
    monkeypatch.setattr(state_sharing, "_decoded", lambda body: decoded.append(body) or decode(body))
    async with Gateway(redis.url, "once") as one:
        await write(one, document_of(b"1"))
        await eventually(lambda: any("cannot be made here" in record.message for record in caplog.records))
        for _ in range(3):
            assert await one.replica.sharing._look()
        assert len(decoded) == 1
        assert sum("cannot be made here" in record.message for record in caplog.records) == 1


@pytest.mark.usefixtures("looking")
async def test_changes_that_are_too_long_to_share_are_made_here_alone(redis, caplog, monkeypatch):
    monkeypatch.setattr(state_sharing, "MOST_BYTES", 100)
    async with Gateway(redis.url, "long") as one:
        outcome = await one.choose("lpwl")
        assert (one.rule, outcome.shared) == ("lpwl", False)
        await eventually(lambda: any("at most 100 are shared" in getattr(r, "reason", "") for r in caplog.records))
