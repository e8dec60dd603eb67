"""A small fleet, and a generator that keeps it busy for seconds."""

from dataclasses import replace

import pytest

from loadtest.lab.cell import Cell, Fleet, Setting, Slo
from loadtest.lab.models import Models

SMALL = "generator:multi_turn:rate_per_s=2"


@pytest.fixture
def cell():
    """Two small workers for 20 seconds; `models` and fields of the cell by keyword."""

    def make(models=None, **fields):
        given = {"warm_up_s": 5.0, "block_tokens": 64, "kv_tokens": 60_000, **(models or {})}
        setting = Setting(Fleet(2, "llama-3.1-8b-h100"), Slo(500.0, 50.0), Models(**given), 20.0)
        return replace(Cell(SMALL, "lpwl", 1.0, 0, setting), **fields)

    return make
