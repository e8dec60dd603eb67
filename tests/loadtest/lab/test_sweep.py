import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.lab import sweep as sweeps
from loadtest.lab.run_cell import run_cell
from loadtest.lab.store import Store
from loadtest.lab.sweep import Sweep, SweepError
from tests.support.waiting import block_until


@pytest.fixture
def quick(cell):
    return [cell(seed=seed, rate=0.2) for seed in range(3)]


def test_results_come_in_the_order_asked_for_and_are_those_of_this_process(quick, tmp_path):
    store, seen = Store(tmp_path), []
    with Sweep(store, jobs=1) as sweep:
        results = sweep.results([*reversed(quick), quick[0]], seen.append)
    assert [one.cell["seed"] for one in results] == [2, 1, 0, 0]
    assert len(seen) == 3
    assert results[-1].measures == run_cell(quick[0])
    assert Store(tmp_path).get(quick[1]) == store.get(quick[1])


def test_a_killed_process_ends_the_sweep_and_what_had_finished_is_kept(cell, tmp_path):
    quick = [cell(seed=seed, rate=0.2) for seed in range(6)]
    with Sweep(Store(tmp_path), jobs=1) as sweep:

        def kill(result):
            for process in sweep._pool._processes.values():
                process.kill()

        with pytest.raises(SweepError, match="the same command goes on"):
            sweep.results(quick, kill)
    store = Store(tmp_path)
    kept = [cell for cell in quick if store.get(cell) is not None]
    assert 1 <= len(kept) < len(quick)
    with Sweep(store, jobs=1) as sweep:
        assert len(sweep.results(quick)) == len(quick)


def test_a_stored_cell_is_not_run_again(quick, tmp_path, monkeypatch):
    store = Store(tmp_path)
    for cell in quick:
        store.add(cell, run_cell(cell))
    monkeypatch.setattr(sweeps, "run_cell", None)
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


ENDLESS = """
import os, sys, time
from pathlib import Path
from loadtest.lab.store import Store
from loadtest.lab.sweep import Sweep

if __name__ == "__main__":
    with Sweep(Store(Path(sys.argv[1])), jobs=1) as sweep:
        print(sweep._pool.submit(os.getpid).result(), flush=True)
        sweep._pool.submit(time.sleep, 600).result()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_its_processes_end_with_it_however_it_dies(number, tmp_path):
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    with subprocess.Popen([sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        parent.send_signal(number)
    block_until(lambda: not _runs(child), 20)


def _runs(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
