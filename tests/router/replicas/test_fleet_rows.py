import time

import msgspec
import pytest

from router.limits.table import key_of
from router.placement.learning.utilisation import Work
from router.placement.load.ledger import LoadAccount
from router.placement.load.running import LoadReservation
from router.placement.load.shared_load import LoadTotals
from router.process.shared_memory.replica_rows import ReplicaLedger
from router.replicas import fleet_rows, messages
from router.replicas.fleet_channel import FleetChannel
from router.replicas.messages import Row
from tests.router.replicas.conftest import encoded


class Gateway:
    """One process with its ledger and its channel, without Redis. Its clock is `offset_s` ahead of the test's."""

    def __init__(self, name: str, offset_s: float = 0.0) -> None:
        self.offset_s = offset_s
        self.shared = ReplicaLedger()
        self.channel = FleetChannel(name, 0, 1.0, self.shared.rows)

    def account(self, worker: str = "a:1") -> LoadAccount:
        account = LoadAccount()
        account.shared = self.shared.ledger.account(worker)
        return account

    def take(self, now_s: float) -> bytes | None:
        return self.channel.take(now_s + self.offset_s)

    def receive(self, message: bytes | None, now_s: float) -> None:
        assert message is not None
        self.channel.receive(message, now_s + self.offset_s)


@pytest.fixture
def gateways():
    pair = [Gateway("one"), Gateway("two", offset_s=500.0)]
    yield pair
    for gateway in pair:
        gateway.shared.close()


def tell(sender, receiver, now_s):
    receiver.receive(sender.take(now_s), now_s)


def test_reserved_load_arrives_in_the_receivers_time(gateways):
    one, two = gateways
    account, seen = one.account(), two.account()
    account.reserve(LoadReservation(100, 160, 7.0))
    account.shared.worked(Work(50.0, 2.0, 7.0, 6.0))
    two.take(9.0)
    tell(one, two, 10.0)
    others = seen.shared.other_processes()
    assert (others.queued_requests, others.queued_tokens, others.running_requests, others.kv_tokens) == (1, 100, 1, 160)
    assert others.head_since_s == pytest.approx(507.0)
    assert others.work == pytest.approx(Work(50.0, 2.0, 507.0, 506.0))


@pytest.mark.parametrize(
    ("senders", "interval_s"), [(1, 0.02), (4, 0.02), (5, 0.04), (8, 0.04), (9, 0.06), (17, 0.1), (200, 0.1)]
)
def test_the_more_send_the_less_often_each_one_does(gateways, senders, interval_s):
    one, _ = gateways
    for number in range(senders - 1):
        one.channel.receive(encoded(f"other-{number}"), 10.0)
    assert one.channel.interval_s() == pytest.approx(interval_s)


def test_a_replica_does_not_see_itself(gateways):
    one, _ = gateways
    account = one.account()
    account.reserve(LoadReservation(100, 160, 7.0))
    message = one.take(10.0)
    assert one.channel.receive(message, 10.01)
    assert account.shared.other_processes().running_requests == 0
    assert one.channel.lag_s == pytest.approx(0.01)


def test_only_changed_rows_are_sent_and_all_once_a_second(gateways):
    one, _ = gateways
    accounts = [one.account(f"a:{number}") for number in range(3)]
    for account in accounts:
        account.reserve(LoadReservation(100, 160, 7.0))
    assert len(rows(one.take(10.0))) == 3
    assert one.take(10.02) is None
    accounts[1].reserve(LoadReservation(1, 2, 10.0))
    assert [row.running_requests for row in rows(one.take(10.04))] == [2]
    assert rows(one.take(10.2)) == []  # a heartbeat
    assert len(rows(one.take(11.1))) == 3


def rows(message: bytes | None) -> list[Row]:
    batch = messages.decode(message or b"")
    assert batch is not None
    return messages.ROWS.decode(batch.rows)


def test_a_lost_message_heals_with_the_next_whole_one(gateways):
    one, two = gateways
    account, seen = one.account(), two.account()
    two.take(9.0)
    tell(one, two, 9.0)
    account.reserve(LoadReservation(100, 160, 7.0))
    one.take(9.5)
    tell(one, two, 9.7)
    assert seen.shared.other_processes().running_requests == 0
    tell(one, two, 10.1)
    assert seen.shared.other_processes().running_requests == 1
    assert two.channel.senders.missed == 1


def test_a_failed_message_is_followed_by_a_whole_one(gateways):
    one, _ = gateways
    one.account().reserve(LoadReservation(100, 160, 7.0))
    one.take(10.0)
    one.channel.lost()
    assert len(rows(one.take(10.02))) == 1


def test_rows_of_a_silent_replica_are_dropped_after_a_second(gateways):
    one, two = gateways
    account, seen = one.account(), two.account()
    two.take(9.0)
    account.reserve(LoadReservation(100, 160, 7.0))
    tell(one, two, 10.0)
    two.take(10.9)
    assert seen.shared.other_processes().running_requests == 1
    two.take(11.1)
    assert seen.shared.other_processes() == LoadTotals()
    assert not two.channel.senders.replicas


def test_rows_of_a_worker_that_is_added_later_count_at_once(gateways):
    one, two = gateways
    one.account().reserve(LoadReservation(100, 160, 7.0))
    tell(one, two, 10.0)
    late = two.account()
    two.take(10.02)
    assert late.shared.other_processes().running_requests == 1


def test_a_worker_that_leaves_frees_its_slot(gateways):
    one, two = gateways
    one.account().reserve(LoadReservation(100, 160, 7.0))
    seen = two.account()
    two.take(9.9)
    tell(one, two, 10.0)
    seen.shared.close()
    two.take(10.1)
    assert not any(two.shared.ledger._memory[two.shared.ledger._layout.row(0, 0) :][: 2 * 104])


def test_three_replicas_are_summed():
    three = [Gateway(name) for name in ("one", "two", "three")]
    accounts = [gateway.account() for gateway in three]
    three[2].take(8.0)
    for at_s, account, gateway in zip((4.0, 3.0), accounts, three, strict=False):
        account.reserve(LoadReservation(10, 16, at_s))
        tell(gateway, three[2], 10.0)
    others = accounts[2].shared.other_processes()
    assert (others.queued_requests, others.kv_tokens) == (2, 32)
    assert others.head_since_s == pytest.approx(3.0)
    for gateway in three:
        gateway.shared.close()


GARBAGE = [
    b"",
    b"\xc1",
    b"\x90",
    b"hello",
    msgspec.msgpack.encode({"replica": "x"}),
    msgspec.msgpack.encode(["x", 0, 1.0, 1, False, [["key"]], [], [0, ""], []]),
    msgspec.msgpack.encode(["x", 0, 1.0, 1, False, [[1, float("nan")]], [], [0, ""], []]),
    msgspec.msgpack.encode(["x", 0, 1.0, 1, False, [[-1]], [], [0, ""], []]),
    msgspec.msgpack.encode(["x", 0, 1.0, 1, False, 7, 7, [0, ""], 7]),
    msgspec.msgpack.encode(["", 0, 1.0, 1, False, [], [], [0, ""], []]),
    b"\x91" * 100_000,
    bytes(5 << 20),
]


@pytest.mark.parametrize("message", GARBAGE, ids=range(len(GARBAGE)))
def test_a_malformed_message_is_counted_and_changes_nothing(gateways, message):
    one, _ = gateways
    assert one.channel.receive(message, 10.0) is False
    assert one.channel.malformed == 1 and not one.channel.senders.replicas


def test_senders_beyond_the_bound_are_not_heard(gateways):
    one, _ = gateways
    for number in range(1_500):
        one.channel.receive(encoded(f"r{number}"), 10.0)
    assert len(one.channel.senders.replicas) == 1_000
    one.take(12.0)
    assert not one.channel.senders.replicas


def test_an_old_message_does_not_replace_a_newer_one(gateways):
    one, two = gateways
    account, seen = one.account(), two.account()
    two.take(9.0)
    old = one.take(9.0)
    account.reserve(LoadReservation(100, 160, 7.0))
    tell(one, two, 10.1)
    two.receive(old, 10.2)
    assert seen.shared.other_processes().running_requests == 1


def test_rows_of_others_are_bounded_and_known_ones_go_on_to_change(gateways, monkeypatch):
    monkeypatch.setattr(fleet_rows, "MOST_KEPT", 10)
    one, _ = gateways
    seen = one.account()
    one.take(9.0)
    key = key_of("a:1")
    rows = [Row(key, running_requests=3.0), *(Row(number) for number in range(20))]

    def told(replica, seq, rows, now_s=10.0):
        one.channel.receive(encoded(replica, seq, whole=True, rows=messages.packed(rows)), now_s)

    told("x", 1, rows)
    told("y", 1, rows)
    assert seen.shared.other_processes().running_requests == 3
    told("x", 2, [Row(key, running_requests=4.0)])
    assert seen.shared.other_processes().running_requests == 4
    told("y", 2, rows)
    assert seen.shared.other_processes().running_requests == 7, "there is room again"
    one.take(12.0)
    assert seen.shared.other_processes().running_requests == 0
    assert one.channel._rows._kept == 0 and not one.channel._rows._by_key


def test_one_message_costs_a_bounded_time_however_many_replicas_there_are(gateways, monkeypatch):
    monkeypatch.setattr(fleet_rows, "MOST_KEPT", 4 * 1_024)  # rows of four of the 100
    one, _ = gateways
    packed = messages.packed([Row(number) for number in range(1_024)])
    for number in range(100):
        one.channel.receive(encoded(f"r{number}", rows=packed), 10.0)
    last = encoded("last", rows=packed)
    began_s = time.thread_time()
    one.channel.receive(last, 10.0)
    assert time.thread_time() - began_s < 0.03
