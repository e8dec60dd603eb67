"""Placements on workers without KV events reach the models of other replicas; those with events send nothing."""

import asyncio
from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.view import Residency, WorkerId
from router.config.model import Config, RedisConfig
from router.limits.table import key_of
from router.replicas import fleet_placements, messages
from router.replicas.fleet_channel import FleetChannel
from router.replicas.fleet_placements import MOST_WAITING_BLOCKS, WHOLE_S, FleetPlacements
from router.replicas.messages import Placed
from router.replicas.replica import Replica
from router.residency.prompt import Prompt, PromptSource
from router.residency.residency_map import ResidencyMap
from tests.router.replicas.conftest import encoded
from tests.support.redis import needs_redis
from tests.support.waiting import eventually

BLOCK = 16
LATER_S = 1.0 + 2 * WHOLE_S


def prompt(*parts: tuple[str, int]) -> Prompt:
    """Return a prompt of named parts, each of some blocks. Prompts that begin with the same parts share blocks."""
    hashes = [0]
    for name, blocks in parts:
        for index in range(blocks):
            hashes.append(hash((hashes[-1], name, index)) & (2**64 - 1))
    del hashes[0]
    return Prompt(len(hashes) * BLOCK + 1, PromptSource.RENDERED, lambda size: hashes)


class Process:
    """A process with one worker, at a slot of its own, and its side of the channel."""

    def __init__(self, replica: str, slot: int, *, events: bool = False, number: int = 0) -> None:
        self.slot = slot
        self.views = ResidencyMap()
        self.views.add(slot, WorkerId("a:1"), BLOCK, 1_000, events)
        self.placements = FleetPlacements(self.views)
        self.channel = FleetChannel(replica, number, 1.0, None, placements=self.placements)
        self.tickets = 0

    def place(self, wanted: Prompt) -> int:
        self.tickets += 1
        found = self.views.match(wanted, [self.slot])[self.slot]
        self.views.slot(self.slot).reserve(wanted, self.tickets, found=found)
        return self.tickets

    def finish(self, wanted: Prompt, ticket: int, generated: int = 4) -> None:
        self.views.slot(self.slot).finished(wanted, generated, None, ticket)
        self.views.slot(self.slot).release(ticket)

    def serve(self, wanted: Prompt) -> None:
        self.finish(wanted, self.place(wanted))

    def cached(self, wanted: Prompt) -> int:
        return self.views.match(wanted, [self.slot])[self.slot].tokens // BLOCK

    @property
    def unplaced(self) -> int:
        return self.fault("unplaced")

    def fault(self, kind: str) -> int:
        return next(int(value) for _, labels, value in self.channel.readings() if labels == (kind,))


def placed(message: bytes) -> list[Placed]:
    batch = messages.decode(message)
    assert batch is not None
    return messages.PLACED.decode(batch.placed)


def tell(sender: Process, *receivers: Process, now_s: float = LATER_S) -> list[Placed]:
    message = sender.channel.take(now_s)
    assert message is not None
    for each in receivers:
        each.channel.receive(message, now_s)
    return placed(message)


def sizes(rows: list[Placed]) -> list[tuple[int, int]]:
    return [(row.depth, len(row.hashes) // 8) for row in rows]


@pytest.fixture
def pair() -> tuple[Process, Process]:
    return known_pair()


def known_pair() -> tuple[Process, Process]:
    one, two = Process("one", 0), Process("two", 5)
    tell(one, two, now_s=1.0)
    tell(two, one, now_s=1.0)
    for each in (one, two):
        each.channel.take(LATER_S - 1.0)
    return one, two


def test_a_placement_is_known_to_the_other_replica(pair):
    one, two = pair
    one.place(prompt(("x", 8)))
    tell(one, two)
    assert two.cached(prompt(("x", 8))) == 8
    assert two.cached(prompt(("y", 8))) == 0


def test_only_new_blocks_are_sent(pair):
    one, two = pair
    one.serve(prompt(("system", 20)))
    assert sizes(tell(one, two)) == [(0, 20)]
    one.serve(prompt(("system", 20), ("x", 4)))
    assert sizes(tell(one, two)) == [(20, 4)]
    one.serve(prompt(("system", 12), ("y", 3)))
    assert sizes(tell(one, two)) == [(12, 3)]
    one.serve(prompt(("system", 20), ("x", 4)))
    one.serve(prompt(("system", 20), ("x", 4), ("z", 2)))
    assert sizes(tell(one, two)) == [(24, 2)]
    assert two.cached(prompt(("system", 20), ("x", 4), ("z", 2))) == 26
    assert two.cached(prompt(("system", 12), ("y", 3))) == 15
    assert two.unplaced == 0


def test_blocks_in_flight_are_not_sent_again(pair):
    one, two = pair
    one.place(prompt(("a", 2)))
    one.place(prompt(("a", 2), ("b", 2)))
    one.place(prompt(("a", 2), ("b", 2)))
    one.place(prompt(("a", 2), ("b", 2), ("c", 1)))
    assert sizes(tell(one, two)) == [(0, 2), (2, 2), (4, 1)]
    assert two.cached(prompt(("a", 2), ("b", 2), ("c", 1))) == 5
    assert two.unplaced == 0


def test_an_answer_that_comes_back_in_the_next_prompt_is_sent_with_it(pair):
    """The first replica predicts the blocks of the answer; only the next prompt has their hashes."""
    one, two = pair
    first = prompt(("turn", 8))
    one.finish(first, one.place(first), generated=4 * BLOCK)
    tell(one, two)
    second = prompt(("turn", 8), ("answer", 4), ("next", 2))
    assert one.cached(second) == 12
    one.place(second)
    assert sizes(tell(one, two)) == [(8, 6)]
    assert two.cached(second) == 14


def test_a_replica_takes_up_what_the_other_began(pair):
    one, two = pair
    one.serve(prompt(("system", 6), ("a", 2)))
    tell(one, two)
    two.serve(prompt(("system", 6), ("b", 2)))
    assert sizes(tell(two, one)) == [(6, 2)]
    one.serve(prompt(("system", 6), ("b", 2), ("c", 1)))
    assert sizes(tell(one, two)) == [(8, 1)]
    for each in pair:
        assert each.cached(prompt(("system", 6), ("b", 2), ("c", 1))) == 9


_PART = st.tuples(st.sampled_from("abc"), st.integers(1, 3))
_PLACED = st.tuples(st.integers(0, 1), st.lists(_PART, min_size=1, max_size=6), st.booleans())


@given(st.lists(_PLACED, max_size=25))
def test_both_replicas_come_to_know_the_same_prompts(steps):
    """Whoever placed them, in flight or served to the end, while no message is lost."""
    pair = known_pair()
    for number, (by, parts, ends) in enumerate(steps):
        sender, receiver = pair[by], pair[1 - by]
        ticket = sender.place(prompt(*parts))
        if ends:
            sender.finish(prompt(*parts), ticket)
        tell(sender, receiver, now_s=LATER_S + number)
        tell(receiver, sender, now_s=LATER_S + number)
    one, two = pair
    assert one.unplaced == two.unplaced == 0
    for _, parts, _ in steps:
        blocks = sum(count for _, count in parts)
        assert one.cached(prompt(*parts)) == two.cached(prompt(*parts)) == blocks


def test_a_lost_beginning_costs_the_rest_alone(pair):
    one, two = pair
    one.serve(prompt(("a", 4)))
    tell(one)
    one.serve(prompt(("a", 4), ("b", 4)))
    one.serve(prompt(("c", 4)))
    tell(one, two)
    assert (two.cached(prompt(("a", 4), ("b", 4))), two.cached(prompt(("c", 4)))) == (0, 4)
    assert two.unplaced == 1


def test_a_new_replica_gets_whole_prompts(pair):
    one, _ = pair
    one.serve(prompt(("a", 4)))
    tell(one)
    late = Process("late", 2)
    tell(late, one)
    one.channel.take(LATER_S + 0.2)
    one.serve(prompt(("a", 4), ("b", 4)))
    assert sizes(tell(one, late, now_s=LATER_S + 0.4)) == [(0, 8)]
    assert late.cached(prompt(("a", 4), ("b", 4))) == 8
    one.channel.take(LATER_S + WHOLE_S + 1.0)
    one.serve(prompt(("a", 4), ("b", 4), ("c", 1)))
    assert sizes(tell(one, late, now_s=LATER_S + WHOLE_S + 2.0)) == [(8, 1)]


def test_processes_of_one_host_hear_each_other():
    one, two = Process("host", 0, number=1), Process("host", 0, number=2)
    one.place(prompt(("x", 4)))
    tell(one, two)
    assert two.cached(prompt(("x", 4))) == 4
    assert not two.channel.senders.replicas


def test_workers_with_events_send_and_take_nothing(monkeypatch):
    one, two = Process("one", 0, events=True), Process("two", 0)
    view = one.views._slots[0]
    monkeypatch.setattr(view, "modelled", False)
    one.place(prompt(("x", 8)))
    assert tell(one) == [] and not one.placements.needed
    two.place(prompt(("x", 8)))
    assert len(tell(two, one)) == 1
    assert view.state().blocks == 0 and one.unplaced == 0


def test_workers_without_a_prefix_cache_send_nothing(pair):
    one, _ = pair
    one.views.slot(0).tested(Residency.OFF, "no prefix caching")
    one.views._slots[0].refresh()
    one.place(prompt(("x", 8)))
    assert tell(one) == []


def test_another_block_size_or_worker_is_counted_and_ignored(pair):
    one, _ = pair
    row = array("Q", [1, 2]).tobytes()
    rows = [Placed(1, BLOCK, 0, b"", row), Placed(key_of("a:1"), 32, 0, b"", row)]
    one.placements.heard(rows, 1.0, new=False)
    assert one.unplaced == 2 and one.views.statistics()["approximate_bytes"] == 0


@pytest.mark.parametrize(
    ("depth", "steps", "hashes"),
    [(0, b"", b""), (0, b"", b"1234567"), (0, bytes(8), bytes(8)), (4, b"", bytes(8)), (4, bytes(8), bytes(8)),
     (1 << 32, bytes(8), bytes(8)), (1, bytes(7), bytes(8))],
)  # fmt: skip
def test_a_placement_that_belongs_nowhere_changes_nothing(pair, depth, steps, hashes):
    one, _ = pair
    one.serve(prompt(("x", 2)))
    before = one.views.statistics()["approximate_bytes"]
    one.placements.heard([Placed(key_of("a:1"), BLOCK, depth, steps, hashes)], 1.0, new=False)
    assert one.unplaced == 1 and one.views.statistics()["approximate_bytes"] == before


@pytest.mark.parametrize("part", [7, [[1]], [[1, 0, 0, b"", b""]], [[1, 16, -1, b"", b""]], [[1, 16, 0, "x", b""]]])
def test_malformed_placements_are_counted(pair, part):
    one, _ = pair
    one.channel.receive(encoded(placed=msgspec.Raw(msgspec.msgpack.encode(part))), 1.0)
    assert one.channel.malformed == 1


def test_what_waits_is_bounded():
    one = Process("one", 0)
    for number in range(30):
        one.place(prompt((f"p{number}", 40_000)))
    assert one.fault("dropped") > 0
    assert one.placements._waiting_blocks <= MOST_WAITING_BLOCKS
    message = one.channel.take(1.0)
    assert message is not None and len(message) < messages.MOST_MESSAGE_BYTES / 2
    assert placed(message)


@needs_redis
async def test_a_process_joins_over_redis_once_a_cache_is_modelled(redis):
    config = Config(redis=RedisConfig(url=redis.url, fleet="placements"))
    views = [ResidencyMap(), ResidencyMap()]
    members = [
        Replica(config, replica="host", process=number, placements=FleetPlacements(each))
        for number, each in enumerate(views, 1)
    ]
    for member in members:
        member.start()
    await asyncio.sleep(0)
    for slot, each in enumerate(views):
        each.add(slot, WorkerId("a:1"), BLOCK, 1_000, False)
    await eventually(lambda: not any(member.line.alone for member in members))
    views[0].slot(0).reserve(prompt(("x", 8)), 1)
    await eventually(lambda: views[1].match(prompt(("x", 8)), [1])[1].tokens == 8 * BLOCK)
    for member in members:
        await member.aclose()


def test_memory_of_models_stays_bounded():
    views = ResidencyMap(approximate_bytes=100_000)
    views.add(0, WorkerId("a:1"), BLOCK, 1_000_000, False)
    for number in range(50):
        views.placed_elsewhere(WorkerId("a:1"), BLOCK, [], 0, prompt((f"p{number}", 1_000)).chain(BLOCK))
    assert views.statistics()["approximate_bytes"] <= 100_000


def test_a_worker_that_left_takes_nothing(pair):
    one, two = pair
    two.views.remove(5)
    one.place(prompt(("x", 8)))
    tell(one, two)
    assert two.unplaced == 1


def test_blocks_of_one_message_are_bounded(pair, monkeypatch):
    monkeypatch.setattr(fleet_placements, "MOST_MESSAGE_BLOCKS", 25)
    one, two = pair
    for name in ("a", "b", "c"):
        one.serve(prompt((name, 10)))
    tell(one, two)
    assert [two.cached(prompt((name, 10))) for name in ("a", "b", "c")] == [10, 10, 0]
    assert two.unplaced == 1
