"""Cells in other processes, kept as they end."""

import pytest

from loadtest.lab import sweep as sweeps
from loadtest.lab.play import play
from loadtest.lab.store import Store
from loadtest.lab.sweep import Sweep


@pytest.fixture
def quick(cell):
    """Cells that take no time to speak of."""
    return [cell(seed=seed, rate=0.2, regret=False) for seed in range(3)]


def test_results_come_in_the_order_asked_for_and_are_those_of_this_process(quick, tmp_path):
    store, seen = Store(tmp_path), []
    with Sweep(store, jobs=1) as sweep:
        results = sweep.results([*reversed(quick), quick[0]], seen.append)
    assert [one.cell["seed"] for one in results] == [2, 1, 0, 0]
    assert len(seen) == 3
    assert results[-1].measures == play(quick[0])[0]
    assert Store(tmp_path).get(quick[1]) == store.get(quick[1])


def test_what_is_kept_is_not_run_again(quick, tmp_path, monkeypatch):
    store = Store(tmp_path)
    for cell in quick:
        store.add(cell, *play(cell))
    monkeypatch.setattr(sweeps, "play", None)
    with Sweep(Store(tmp_path), jobs=1) as sweep:
        assert len(sweep.results(quick)) == 3


def test_ctrl_c_keeps_what_has_finished(quick, tmp_path):
    store = Store(tmp_path)

    def interrupt(result):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Sweep(store, jobs=1) as sweep:
        sweep.results(quick, interrupt)
    again = Store(tmp_path)
    assert [again.get(cell) is not None for cell in quick].count(True) == 1
