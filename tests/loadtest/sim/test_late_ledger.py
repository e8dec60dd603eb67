from types import SimpleNamespace

import pytest

from loadtest.sim.late_ledger import late_ledgers
from router.placement.learning.utilisation import Work
from router.placement.load.shared_load import LoadTotals, combined


def reserved(**changed):
    return SimpleNamespace(queue=None, **(LoadTotals()._asdict() | changed))


@pytest.fixture
def clock():
    return SimpleNamespace(now_s=0.0)


def accounts(clock, delay_s, routers=3, own_delay_s=0.0):
    return [one.account("w") for one in late_ledgers(routers, delay_s, lambda: clock.now_s, own_delay_s)]


def test_a_reservation_reaches_the_other_replicas_late_and_never_returns(clock):
    first, second, third = accounts(clock, 0.5)
    first.publish(reserved(queued_requests=2, queued_tokens=700, running_requests=2, head_since_s=0.1, freed_s=0.05))
    assert second.other_processes().queued_tokens == 0
    clock.now_s = 0.5
    for other in (second, third):
        seen = other.other_processes()
        assert (seen.queued_requests, seen.queued_tokens, seen.running_requests) == (2, 700, 2)
        assert (seen.head_since_s, seen.freed_s) == (0.1, 0.05)
    assert first.other_processes().queued_requests == 0


def test_rows_add_up_and_the_oldest_head_leads(clock):
    first, second, third = accounts(clock, 0.0)
    first.publish(reserved(queued_requests=1, kv_tokens=10, head_since_s=4.0, freed_s=1.0))
    second.publish(reserved(queued_requests=1, kv_tokens=20, head_since_s=3.0, freed_s=2.0))
    seen = third.other_processes()
    assert (seen.queued_requests, seen.kv_tokens, seen.head_since_s, seen.freed_s) == (2, 30, 3.0, 2.0)


def test_changes_come_in_order_each_by_its_own_time(clock):
    first, second, _ = accounts(clock, 1.0)
    for at_s, tokens in ((0.0, 100), (0.4, 200), (0.8, 300)):
        clock.now_s = at_s
        first.publish(reserved(queued_tokens=tokens))
    seen = []
    for at_s in (0.9, 1.0, 1.3, 1.4, 5.0):
        clock.now_s = at_s
        seen.append(second.other_processes().queued_tokens)
    assert seen == [0, 100, 100, 200, 300]


def test_work_is_kept_beside_the_reservations(clock):
    first, second, third = accounts(clock, 0.0)
    first.worked(Work(100.0, 1.0, 5.0, 5.0))
    first.publish(reserved(queued_tokens=1))
    second.worked(Work(50.0, 1.0, 5.0, 4.0))
    work = third.other_processes().work
    assert (work.tokens, work.since_s) == (150.0, 4.0)
    first.close()
    second.close()
    assert third.other_processes().work is None and third.other_processes().queued_tokens == 0


def test_a_router_with_late_reservations_adds_up_the_reservations_of_then(clock):
    (only,) = accounts(clock, 0.0, routers=1, own_delay_s=0.5)
    for at_s, tokens in ((0.0, 700), (0.2, 900), (0.9, 0)):
        clock.now_s = at_s
        own = reserved(queued_requests=tokens // 100, queued_tokens=tokens, head_since_s=at_s)
        only.publish(own)
    for at_s, then in ((0.95, 900), (1.39, 900), (1.4, 0)):
        clock.now_s = at_s
        all_of_it = combined(own, only.other_processes())
        assert (all_of_it.queued_tokens, all_of_it.queued_requests) == (then, then // 100)


def test_own_and_replica_delays_are_independent(clock):
    first, second = accounts(clock, 0.1, routers=2, own_delay_s=9.0)
    first.publish(reserved(queued_requests=1, queued_tokens=700))
    clock.now_s = 0.1
    assert second.other_processes().queued_tokens == 700
    assert first.other_processes().queued_tokens == -700
