"""The command as a user starts it, in small."""

import json
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "loadtest", "replicas"]


def run(*flags, **options):
    return subprocess.run([*COMMAND, *map(str, flags)], capture_output=True, text=True, timeout=110, **options)


@pytest.mark.slow
def test_parts_are_added_to_one_page(tmp_path):
    sim = run("--part", "sim", "--seeds", 1, "--workload", "shared-prompts", "--jobs", 2, "--out", tmp_path)
    assert sim.returncode == 0, sim.stdout + sim.stderr
    assert "cached share lost, exact views without Redis" in sim.stdout
    first = json.loads((tmp_path / "replicas.json").read_text())
    assert len(first["sim"]["shared-prompts"]) == 14 and first["exchange"] == []
    assert "--part sim" in first["taken"]["sim"]["command"] and "--out" not in first["taken"]["sim"]["command"]


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
