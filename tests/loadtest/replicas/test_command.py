"""The command as a user starts it, in small."""

import subprocess
import sys

import pytest

from loadtest.bench.machine import this_machine
from loadtest.replicas.faults import Healing
from loadtest.replicas.findings import Findings, Taken, read, write

COMMAND = [sys.executable, "-m", "loadtest", "replicas"]


def run(*flags, **options):
    return subprocess.run([*COMMAND, *map(str, flags)], capture_output=True, text=True, timeout=110, **options)


@pytest.mark.slow
def test_a_measured_part_joins_those_in_the_folder(tmp_path):
    healing = Healing("stopped for 3 s", 100, (), 2, 0.5, 1.0)
    write(
        tmp_path, Findings(taken={"faults": Taken("the command", "2026-11-25", this_machine(), 0.5)}, faults=[healing])
    )
    sim = run("--part", "sim", "--seeds", 1, "--workload", "shared-prompts", "--jobs", 2, "--out", tmp_path)
    assert sim.returncode == 0, sim.stdout + sim.stderr
    assert "cached share lost, exact views without Redis" in sim.stdout
    found = read(tmp_path)
    assert len(found.sim["shared-prompts"]) == 14 and found.faults == [healing]
    assert found.taken["sim"].command.endswith("replicas --seeds 1 --workload shared-prompts --jobs 2 --part sim")
    page = (tmp_path / "replicas.md").read_text()
    assert "## Virtual time" in page and "| stopped for 3 s | 100 | 0 | 2 | 0.5 | 1.0 |" in page


def test_a_file_that_holds_something_else_is_named(tmp_path):
    (tmp_path / "replicas.json").write_text("[]")
    done = run("--part", "sim", "--out", tmp_path)
    assert done.returncode == 1
    assert "replicas.json has no findings of this version" in done.stderr and "remove it" in done.stderr


def test_without_a_server_the_command_names_the_package(tmp_path):
    done = run(env={"PATH": str(tmp_path)})
    assert done.returncode == 2 and "apt-get install redis-server" in done.stderr


@pytest.mark.parametrize("flags", [["--part", "absent"], ["--seeds", "0"], ["--fault", "absent"]])
def test_nonsense_is_refused(flags):
    done = run(*flags)
    assert done.returncode == 2 and "error" in done.stderr
