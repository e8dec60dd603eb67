"""Use of limits by other replicas: one bucket for all, what a lost message costs, restarts, and a replica alone."""

import msgspec
import pytest

from router.config.model import LimitsConfig
from router.limits import table as table_module
from router.limits.caller import Charge
from router.limits.host_use import HostUse
from router.limits.registry import RateLimits
from router.limits.table import RateTable, key_of, table_bytes
from router.replicas import fleet_use, messages
from router.replicas.fleet_channel import FleetChannel
from router.replicas.fleet_use import FleetUse
from router.replicas.messages import Used, Uses
from tests.router.replicas.conftest import encoded

PER_MINUTE = {"requests_per_minute": 60, "tokens_per_minute": 6_000}
ANYBODY = key_of("anybody")


class Gateway:
    """The limits of one process and its channel, without Redis. Its clock is `offset_s` ahead of the test's."""

    def __init__(self, name, offset_s=0.0, alone="whole", **limits):
        memory = bytearray(table_bytes(2))
        self.offset_s = offset_s
        config = msgspec.convert({"tenants": {"default": limits or PER_MINUTE}}, LimitsConfig)
        self.limits = RateLimits(config, RateTable(memory, processes=2, process=0))
        self.use = FleetUse(HostUse(RateTable(memory, processes=2, process=1)), divided=alone == "share")
        self.channel = FleetChannel(name, 0, 1.0, None, use=self.use)

    def take(self, now_s):
        """Return the next message, and hear it as its own echo."""
        message = self.channel.take(now_s + self.offset_s)
        if message is not None:
            self.channel.receive(message, now_s + self.offset_s)
        return message

    def receive(self, message, now_s):
        if message is not None:
            self.channel.receive(message, now_s + self.offset_s)

    def admit(self, now_s, tokens=0):
        return self.limits.of(None, None).admit(tokens, now_s + self.offset_s)

    def passed(self, count, now_s):
        return sum(isinstance(self.admit(now_s), Charge) for _ in range(count))

    def shown(self, now_s):
        (account,) = self.limits.statistics([(None, None)], now_s + self.offset_s)
        return account

    def left(self, now_s, unit="requests"):
        return self.shown(now_s)[unit]["remaining"]


def exchange(gateways, now_s):
    """Let each hear what the others say now."""
    for sender, message in [(each, each.take(now_s)) for each in gateways]:
        for receiver in gateways:
            if receiver is not sender:
                receiver.receive(message, now_s)


@pytest.fixture
def pair():
    return [Gateway("one"), Gateway("two", offset_s=500.0)]


def test_what_one_replica_uses_is_taken_from_the_others_bucket(pair):
    one, two = pair
    exchange(pair, 9.0)
    assert one.passed(40, 10.0) == 40
    exchange(pair, 10.0)
    assert two.left(10.0) == pytest.approx(20.0)
    assert two.passed(99, 10.0) == 20
    exchange(pair, 10.0)
    assert one.passed(1, 10.0) == two.passed(1, 10.0) == 0
    assert one.passed(9, 12.0) == 2


def test_all_that_passes_in_one_exchange_period_is_paid_back(pair):
    one, two = pair
    exchange(pair, 9.0)
    assert one.passed(60, 10.0) == two.passed(60, 10.0) == 60
    exchange(pair, 10.0)
    assert one.left(10.0) == two.left(10.0) == pytest.approx(-60.0)
    assert one.passed(1, 69.9) == 0
    assert one.passed(9, 72.0) == 2


def test_tokens_are_corrected_everywhere_when_the_request_ends(pair):
    one, two = pair
    exchange(pair, 9.0)
    charge = one.admit(10.0, 4_000)
    exchange(pair, 10.0)
    assert two.left(10.0, "tokens") == pytest.approx(2_000)
    charge.settle(100, 10.1, served=True)
    exchange(pair, 10.1)
    assert two.left(10.1, "tokens") == pytest.approx(5_900, abs=11)


def test_requests_in_progress_count_on_all_replicas():
    pair = [Gateway("one", max_concurrent_requests=3), Gateway("two", max_concurrent_requests=3)]
    one, two = pair
    exchange(pair, 9.0)
    charge = one.admit(10.0)
    one.admit(10.0)
    exchange(pair, 10.0)
    assert two.shown(10.0)["running"] == 2
    assert two.passed(9, 10.0) == 1
    charge.settle(0, 10.1, served=True)
    exchange(pair, 10.1)
    assert two.passed(9, 10.1) == 1


def test_requests_of_a_silent_replica_no_longer_run_and_stay_charged(pair):
    one, two = pair
    exchange(pair, 9.0)
    one.passed(10, 10.0)
    exchange(pair, 10.0)
    assert two.shown(10.0)["running"] == 10
    two.take(11.1)
    assert two.shown(11.1)["running"] == 0
    assert two.left(11.1) == pytest.approx(51.1)


def test_a_lost_message_costs_nothing_once_the_next_arrives(pair):
    one, two = pair
    exchange(pair, 9.0)
    one.passed(10, 10.0)
    one.take(10.0)
    one.passed(10, 10.02)
    exchange(pair, 10.02)
    assert two.left(10.02) == pytest.approx(40.0, abs=0.1)


def test_a_restarted_replica_begins_with_what_the_others_have_left(pair):
    one, two = pair
    exchange(pair, 9.0)
    one.passed(30, 10.0)
    two.passed(20, 10.0)
    exchange(pair, 10.0)
    again = Gateway("again", offset_s=-7.0)
    exchange([one, again], 10.02)
    exchange([one, again], 10.12)
    assert again.left(10.12) == pytest.approx(10.0, abs=0.2)
    again.passed(5, 10.2)
    exchange([one, two, again], 10.2)
    assert one.left(10.2) == pytest.approx(two.left(10.2)) == pytest.approx(5.2, abs=0.2)


def test_use_that_only_others_know_of_reaches_a_new_replica(pair):
    """Replica one has used nothing itself, and passes on what is left."""
    one, two = pair
    exchange(pair, 9.0)
    one.left(9.0)
    two.passed(45, 10.0)
    exchange(pair, 10.0)
    late = Gateway("late")
    exchange([one, late], 10.1)
    exchange([one, late], 10.3)
    assert late.left(10.3) == pytest.approx(15.3, abs=0.2)


def test_after_a_break_the_lower_bucket_counts_and_no_debt_piles_up(pair):
    one, two = pair
    exchange(pair, 9.0)
    for second in range(10, 310):
        one.passed(1, float(second))
        two.passed(1, float(second))
        one.take(float(second))
        two.take(float(second))
    one.passed(50, 310.0)
    exchange(pair, 310.0)
    exchange(pair, 310.2)
    assert two.left(310.2) == pytest.approx(one.left(310.2), abs=0.3)
    assert one.left(310.2) >= 9.0


def test_a_bucket_that_is_full_again_says_nothing(pair):
    one, _ = pair
    one.passed(5, 10.0)
    assert rows(one.take(10.0))
    assert rows(one.take(11.1))  # all in use, and five requests run
    pair[1].passed(0, 10.0)
    fresh = Gateway("fresh")
    fresh.admit(10.0).settle(0, 10.0, served=True)
    assert len(rows(fresh.take(10.0))) == 1
    assert rows(fresh.take(20.0)) == []


def rows(message):
    batch = messages.decode(message or b"")
    assert batch is not None
    return messages.USES.decode(batch.use).rows


class TestAlone:
    """A replica whose own messages do not come back."""

    def silent(self, gateway, until_s):
        """Let time pass without Redis."""
        gateway.channel.take(until_s + gateway.offset_s)

    def fleet(self, alone, **limits):
        trio = [Gateway(name, alone=alone, **limits) for name in ("one", "two", "three")]
        for tick in range(20):
            exchange(trio, 9.0 + tick / 10)
        return trio

    def test_it_uses_the_whole_limit(self):
        one, *_ = self.fleet("whole")
        self.silent(one, 13.0)
        assert one.passed(99, 13.0) == 60

    def test_it_uses_its_share(self):
        trio = self.fleet("share")
        for each in trio:
            self.silent(each, 13.0)
        assert [each.passed(99, 13.0) for each in trio] == [20, 20, 20]
        assert [each.passed(99, 19.0) for each in trio] == [2, 2, 2]

    def test_its_share_is_of_what_was_left(self):
        trio = self.fleet("share")
        trio[0].passed(30, 10.95)
        exchange(trio, 10.96)
        for each in trio:
            self.silent(each, 12.0)
        assert sum(each.passed(99, 12.0) for each in trio) == pytest.approx(31, abs=2)

    def test_a_request_larger_than_the_share_waits_for_a_full_share(self):
        one, *_ = self.fleet("share")
        self.silent(one, 13.0)
        assert isinstance(one.admit(13.0, 5_000), Charge)
        assert one.left(13.0, "tokens") == pytest.approx(-3_000)
        refused = one.admit(13.0, 5_000)
        assert refused.retry_after_s == pytest.approx(150.0)
        assert one.admit(13.0, 7_000).kind.name == "REQUEST_ABOVE_TOKEN_LIMIT"

    def test_requests_at_once_are_divided_too(self):
        one, *_ = self.fleet("share", max_concurrent_requests=7)
        self.silent(one, 13.0)
        assert one.passed(9, 13.0) == 2
        few, *_ = self.fleet("share", max_concurrent_requests=2)
        self.silent(few, 13.0)
        assert few.passed(9, 13.0) == 1

    def test_the_whole_is_one_again_when_redis_is_back(self):
        trio = self.fleet("share")
        for each in trio:
            self.silent(each, 13.0)
        assert trio[0].passed(5, 13.0) == 5
        for tick in range(20):
            exchange(trio, 13.1 + tick / 10)
        assert trio[1].left(15.0) == pytest.approx(trio[0].left(15.0), abs=0.1)
        assert 40.0 < trio[1].left(15.0) <= 60.0

    def test_a_replica_that_left_before_takes_no_share(self):
        one, two, _ = self.fleet("share")
        for tick in range(15):
            exchange([one, two], 11.0 + tick / 10)
        self.silent(one, 15.0)
        assert one.passed(99, 15.0) == 30


GARBAGE = [
    b"\xc1",
    b"\x93",
    msgspec.msgpack.encode([True, [[0, 1]]]),
    msgspec.msgpack.encode([True, [[1, 1, float("nan")]]]),
    msgspec.msgpack.encode([True, [[1, 1, float("inf")]]]),
    msgspec.msgpack.encode([True, [[1, 1, 1.0, 1.0, -1]]]),
    msgspec.msgpack.encode([True, [[1, 1]] * 5_000]),
    msgspec.msgpack.encode([True, 7]),
    msgspec.msgpack.encode({"rows": []}),
]


@pytest.mark.parametrize("part", GARBAGE, ids=range(len(GARBAGE)))
def test_malformed_use_is_counted_and_changes_nothing(pair, part):
    one, _ = pair
    one.receive(encoded()[:-2] + part if part in (b"\xc1", b"\x93") else encoded(use=msgspec.Raw(part)), 10.0)
    assert one.channel.malformed == 1
    assert one.left(10.0) == 60.0


def told(gateway, rows, seq=1, replica="x", now_s=10.0):
    gateway.receive(encoded(replica, seq, use=messages.packed(Uses(True, rows))), now_s)


NONSENSE = [
    Used(ANYBODY, 1, 0.0, 0.0, 0, -1e15, -1e15),
    Used(ANYBODY, 1, 1e15, 0.0, 0, 60.0, 6_000.0),
    Used(ANYBODY, 1, 0.0, 1e15, 0, 60.0, 6_000.0),
    Used(ANYBODY, 1, 1e15, 1e15, 0, -1e15, -1e15),
    Used(ANYBODY, 1, -1e15, -1e15, 0, 1e15, 1e15),
]


@pytest.mark.parametrize("row", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_changes_no_bucket(pair, row):
    one, two = pair
    assert one.passed(10, 10.0) == 10
    for seq in range(1, 20):
        told(one, [row], seq)
        told(two, [row], seq)  # no account of its own yet
    assert one.left(10.0) == pytest.approx(50.0)
    assert one.left(10.0, "tokens") == pytest.approx(6_000.0)
    assert two.left(10.0) == 60.0
    assert two.left(10.0, "tokens") == 6_000.0


def test_nonsense_is_counted(pair):
    one, _ = pair
    one.admit(10.0)
    told(one, [NONSENSE[1]])
    assert one.use.refused == 1


def test_one_sender_takes_no_more_than_a_bucket_and_what_it_gains(pair):
    one, _ = pair
    one.admit(10.0)
    for seq in range(1, 51):  # each with another sum, which would be as many first messages
        told(one, [Used(ANYBODY, seq, 59.0, 0.0, 0, 0.0, None)], seq, now_s=10.0 + seq / 100)
    assert one.left(10.5) == pytest.approx(-1.0, abs=1.0)
    for seq in range(51, 151):
        told(one, [Used(ANYBODY, seq, 59.0, 0.0, 0, -60.0, None)], seq, now_s=10.0 + seq / 100)
    assert one.left(11.5) == pytest.approx(-1.0, abs=1.0), "it gained one request a second, and so did its sender"


def test_a_burst_that_the_window_does_not_cover_counts_later(pair):
    one, _ = pair
    one.admit(10.0)
    told(one, [Used(ANYBODY, 1, 100.0, 0.0, 0, 0.0, None)], 1, now_s=10.0)
    assert one.left(10.0) == pytest.approx(-1.0)
    told(one, [Used(ANYBODY, 1, 100.0, 0.0, 0, 0.0, None)], 2, now_s=30.0)
    assert one.left(30.0) == pytest.approx(-1.0, abs=0.1), "20 more count, as it gained 20"


def test_a_debt_elsewhere_is_an_empty_bucket_here(pair):
    one, two = pair
    one.admit(10.0)
    told(one, [Used(ANYBODY, 0, 500.0, 0.0, 0, -55.0, None)])
    told(two, [Used(ANYBODY, 0, 500.0, 0.0, 0, -55.0, None)])
    assert one.left(10.0) == two.left(10.0) == 0.0


def test_accounts_of_others_leave_room_for_those_of_this_host(pair):
    one, _ = pair
    for seq in range(1, 4):
        rows = [Used(1 + seq * 10_000 + number, 1, 1.0, 1.0, 1, 5.0, 5.0) for number in range(4_096)]
        told(one, rows, seq)
    assert len(one.use._host.accounts) < table_module.SLOTS
    assert one.passed(99, 10.0) == 60


def test_sums_that_are_kept_are_bounded(pair, monkeypatch):
    monkeypatch.setattr(fleet_use, "MOST_KEPT", 10)
    one, _ = pair
    one.left(10.0)
    rows = [Used(7 + number, 1, 1.0, 1.0, 1) for number in range(20)]
    told(one, rows)
    told(one, rows, replica="y")
    assert sum(len(other.sums) + len(other.running) for other in one.use._others.values()) == 20
    told(one, [Used(ANYBODY, 1, 5.0, 5.0, 0, 30.0, None)], seq=2)
    told(one, [Used(ANYBODY, 1, 5.0, 5.0, 0, 30.0, None)], seq=3)
    assert one.left(10.0) == pytest.approx(30.0)
    one.take(12.0)
    assert not one.use._others and one.use._kept == 0 and not one.use._running
