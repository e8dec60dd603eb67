"""The shared table: other processes see reserved load at once, and the load of a dead process is cleared."""

import os

import pytest

from router.placement.load.ledger import LoadAccount
from router.placement.load.running import LoadReservation
from router.process.shared_memory import ledger as module
from router.process.shared_memory.ledger import AcceptCounters, Ledger, make_table


@pytest.fixture
def table():
    descriptor = make_table(3)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def ledgers(table):
    """Three views of one table, all in this process: only the file locks can tell."""
    return [Ledger(table, 3, number) for number in range(3)]


def reserved(ledger, worker="a:1", tokens=100, prompt=160, at_s=5.0) -> LoadAccount:
    account = LoadAccount()
    account.shared = ledger.account(worker)
    account.reserve(LoadReservation(tokens, prompt, at_s))
    return account


def test_reserved_load_is_visible_to_the_others_only(ledgers):
    rows = [ledger.account("a:1") for ledger in ledgers[1:]]
    account = reserved(ledgers[0])
    for row in rows:
        seen = row.other_processes()
        assert (seen.queued_requests, seen.queued_tokens, seen.running_requests, seen.kv_tokens) == (1, 100, 1, 160)
        assert seen.queued_attention == account.queued_attention
        assert seen.head_since_s == 5.0
    assert account.shared.other_processes().running_requests == 0


def test_others_are_summed(ledgers):
    reserved(ledgers[0], tokens=100)
    reserved(ledgers[1], tokens=30, at_s=2.0)
    seen = ledgers[2].account("a:1").other_processes()
    assert (seen.queued_tokens, seen.running_requests, seen.head_since_s) == (130, 2, 2.0)


def test_every_lifecycle_event_is_published(ledgers):
    account, row = LoadAccount(), ledgers[1].account("a:1")
    account.shared = ledgers[0].account("a:1")
    reservation = LoadReservation(100, 160, 1.0)
    account.reserve(reservation)
    account.prefilled(reservation, 2.0)
    assert (
        row.other_processes().queued_tokens,
        row.other_processes().decode_tokens,
        row.other_processes().freed_s,
    ) == (0, 160, 2.0)
    account.progressed(reservation, 7)
    assert row.other_processes().kv_tokens == 167
    account.release(reservation, 3.0)
    assert row.other_processes()._replace(freed_s=0.0) == module._NOTHING


def test_workers_have_separate_rows(ledgers):
    reserved(ledgers[0], "a:1")
    assert ledgers[1].account("b:1").other_processes().running_requests == 0
    assert ledgers[1].account("a:1").other_processes().running_requests == 1


def test_the_load_of_a_dead_process_is_cleared(ledgers):
    reserved(ledgers[0], "a:1")
    reserved(ledgers[0], "b:1")
    reserved(ledgers[1], "a:1")
    ledgers[0].write_accept_counters(AcceptCounters(True, 5, 9))
    ledgers[2].clear(0)
    assert ledgers[2].account("a:1").other_processes().running_requests == 1
    assert ledgers[2].account("b:1").other_processes().running_requests == 0
    assert ledgers[1].accept_counters(0) == AcceptCounters(False, 0, 0)


def test_a_late_event_on_a_closed_row_is_dropped(ledgers):
    """A worker leaves and comes back while a request still runs on its former self."""
    account, row = reserved(ledgers[0]), ledgers[1].account("a:1")
    again = ledgers[0].account("a:1")
    assert row.other_processes().running_requests == 0
    account.release(next(iter(account.queue)), 9.0)
    assert row.other_processes().running_requests == 0
    again.close()


def test_a_slot_is_reused_once_all_processes_release_it(ledgers, monkeypatch, caplog):
    monkeypatch.setattr(module, "SLOTS", 2)
    table = make_table(2)
    one, other = (Ledger(table, 2, number) for number in range(2))
    first = one.account("a:1")
    assert one.account("b:1") is not None
    assert other.account("a:1") is not None
    assert one.account("c:1") is None
    assert one.account("d:1") is None
    assert len(caplog.records) == 1
    first.close()
    assert one.account("c:1") is None, "the other process still knows a:1"
    other.account("a:1").close()
    assert one.account("c:1") is not None
    os.close(table)


def test_one_process_at_a_time_tests_a_worker(table):
    ours = Ledger(table, 3, 0)
    with ours.alone("a:1") as alone:
        assert alone
        assert in_another_process(table, "a:1") == "False"
        assert in_another_process(table, "b:1") == "True"
    assert in_another_process(table, "a:1") == "True"


def test_every_process_finds_a_stored_response_while_its_worker_is_there(ledgers):
    workers = ["a:1", "b:1"]
    one, other = (ledger.pins(lambda: workers) for ledger in ledgers[:2])
    assert other.worker("resp_1") is None
    one.learn("resp_1", "a:1")
    one.learn("resp_2", "b:1")
    assert (other.worker("resp_1"), other.worker("resp_2"), other.worker("resp_3")) == ("a:1", "b:1", None)
    ledgers[2].clear(0)
    assert other.worker("resp_1") == "a:1", "the death of a process does not move stored responses"
    workers.remove("a:1")
    assert other.worker("resp_1") is None


def in_another_process(table: int, worker: str) -> str:
    reader, writer = os.pipe()
    if not os.fork():
        with Ledger(table, 3, 1).alone(worker) as alone:
            os.write(writer, str(alone).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        return said.read()


def test_a_death_is_counted_once_over_all_processes(ledgers):
    body, other_body = 7 << 64 | 9, 8
    one, other = (ledger.deaths() for ledger in ledgers[:2])
    assert (one.latest_s, one.times(body)) == (0.0, ())
    one.add(body, "a:1", 100.0)
    other.add(body, "a:1", 100.4)  # its own connections to the same worker broke, too
    assert other.times(body) == (100.0,)
    other.add(body, "b:1", 100.4)
    assert one.times(body) == (100.0, 100.4)
    one.add(body, "a:1", 105.0)
    assert other.times(body) == (100.4, 105.0)
    assert other.latest_s == 105.0
    assert one.times(other_body) == ()
    ledgers[2].clear(0)
    assert len(one.times(body)) == 2
    other.clear(other_body)
    other.clear(body)
    assert one.times(body) == ()
