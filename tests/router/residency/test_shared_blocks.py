from __future__ import annotations

from random import Random

import numpy as np
import pytest

from router.residency.shared_blocks import SharedBlocks, SharedBlocksWriter


class Table:
    def __init__(self):
        self.memory, self.made = [], []
        self.writer = SharedBlocksWriter(self.allocate, lambda places, words: self.made.append((places, words)))

    def allocate(self, size):
        self.memory.append(memoryview(bytearray(size)))
        return self.memory[-1]

    @property
    def reader(self):
        return SharedBlocks(self.memory[-1], *self.made[-1])

    def change(self, bit, departed=(), arrived=()):
        return self.writer.change(bit, np.array(departed, np.uint64), np.array(arrived, np.uint64)).tolist()


@pytest.fixture
def table():
    return Table()


def test_a_block_has_the_bits_of_its_views(table):
    table.change(0, arrived=[7, 8])
    table.change(3, arrived=[8])
    table.change(64, arrived=[8])
    assert [table.reader.holders(block) for block in (7, 8, 9)] == [1, 1 | 1 << 3 | 1 << 64, 0]
    table.change(0, departed=[8, 9])
    table.writer.clear(3)
    assert [table.reader.holders(block) for block in (7, 8, 9)] == [1, 1 << 64, 0]
    table.writer.clear(500)


def test_a_block_that_departed_and_arrived_is_named(table):
    assert table.change(0, departed=[5, 6], arrived=[6, 7]) == [6]
    assert table.reader.holders(6) == 1


def test_blocks_at_the_end_of_the_table_go_on_at_its_start(table):
    last = [(1 << 64) - 1 - number for number in range(50)]
    table.change(1, arrived=last)
    assert {table.reader.holders(block) for block in last} == {2}
    assert table.reader.holders((1 << 64) - 60) == 0


def test_a_reader_agrees_with_a_dictionary(table):
    rng, truth = Random(4), {}
    # Keys that differ in their low bits alone want the same place.
    known = [(rng.randrange(1, 1 << 10) << 54) | number for number in range(2_000)]
    for step in range(400):
        bit = rng.choice([0, 1, 63, 64, 130]) if step > 200 else rng.randrange(3)
        departed, arrived = rng.sample(known, rng.randrange(40)), rng.choices(known, k=rng.randrange(80))
        again = table.change(bit, departed, arrived)
        assert set(again) == set(departed) & set(arrived)
        for block in departed:
            truth[block] = truth.get(block, 0) & ~(1 << bit)
        for block in arrived:
            truth[block] = truth.get(block, 0) | 1 << bit
        if step % 50 == 0:
            assert {block: table.reader.holders(block) for block in truth} == truth
    assert {block: table.reader.holders(block) for block in truth} == truth
    assert table.made[-1][1] == 4


def test_a_table_is_made_anew_without_the_blocks_that_nobody_holds(table):
    rng = Random(5)
    for _ in range(60):
        blocks = [rng.getrandbits(64) for _ in range(500)]
        table.change(0, arrived=blocks)
        assert {table.reader.holders(block) for block in blocks} == {1}
        table.change(0, departed=blocks)
    assert len(table.made) > 5 and table.made[-1] == (4_096, 1)
