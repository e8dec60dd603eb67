from math import inf

import pytest

from router.limits import table as module
from router.limits.table import RateTable, key_of, local_table, table_bytes


def test_an_account_finds_its_slot_again():
    table = local_table()
    slot = table.place(key_of("tenant:red"))
    table.write(slot, 3.0, 5.0, 9.0)
    assert table.place(key_of("tenant:red")) == slot
    assert table.read(slot) == (key_of("tenant:red"), 3.0, 5.0, 9.0)
    assert table.place(key_of("tenant:blue")) != slot


def test_keys_with_one_place_get_different_slots():
    table = local_table()
    slots = [table.place(1 + n * module.SLOTS) for n in range(3)]
    assert len(set(slots)) == 3
    assert [table.place(1 + n * module.SLOTS) for n in range(3)] == slots


def test_a_full_table_gives_away_the_slot_that_was_used_least_recently(monkeypatch):
    monkeypatch.setattr(module, "SLOTS", 4)
    table = RateTable(bytearray(table_bytes(1)))
    slots = [table.place(key) for key in (1, 2, 3, 4)]
    for at_s, slot in zip((20.0, 10.0, 40.0, 30.0), slots, strict=True):
        table.write(slot, 0.0, 0.0, at_s)
    table.count(slots[1], 1, 1.0, 0.0)  # an account with a running request keeps its slot
    assert table.place(5) == slots[0]
    assert table.read(slots[0]) == (5, inf, inf, 0.0)


def test_running_requests_are_summed_over_processes_and_cleared_for_one():
    memory = bytearray(table_bytes(3))
    tables = [RateTable(memory, processes=3, process=process) for process in range(3)]
    slot = tables[0].place(7)
    for table in tables:
        table.count(slot, 2, 2.0, 0.0)
    assert tables[0].running(slot) == 6
    tables[0].clear(2)
    assert tables[1].running(slot) == 4


@pytest.mark.parametrize("processes", [1, 4])
def test_tables_of_other_offsets_do_not_overlap(processes):
    memory = bytearray(2 * table_bytes(processes))
    first = RateTable(memory, 0, processes=processes)
    second = RateTable(memory, table_bytes(processes), processes=processes)
    slot = first.place(9)
    first.write(slot, 1.0, 1.0, 2.0)
    first.count(slot, 1, 1.0, 7.0)
    first.set_rates(slot, (1.0, 60.0, 2.0, 120.0))
    first.divide(3.0)
    assert second.place(9) == slot
    assert second.read(slot) == (9, inf, inf, 0.0)
    assert second.running(slot) == 0
    assert (second.rates(slot), second.parts) == ((0.0, 0.0, 0.0, 0.0), 1.0)
    assert first.rates(slot) == (1.0, 60.0, 2.0, 120.0)
