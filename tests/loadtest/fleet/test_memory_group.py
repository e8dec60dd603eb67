import subprocess
import sys

import pytest

from loadtest.fleet.memory_group import MemoryGroup, NoMemoryGroup

MB = 1_000_000


@pytest.fixture
def group():
    try:
        with MemoryGroup(200 * MB) as made:
            yield made
    except NoMemoryGroup as reason:
        pytest.skip(str(reason))


def test_a_process_over_the_limit_is_ended_and_counted(group):
    for size, code in ((50 * MB, 0), (400 * MB, -9)):
        run = subprocess.run(group.command([sys.executable, "-c", f"bytearray({size})"]), check=False)
        assert run.returncode == code
    assert group.kills == 1
    assert group.peak_bytes is None or group.peak_bytes > 150 * MB


def test_the_group_is_gone_afterwards(group):
    group.remove()
    assert not group._folder.exists()
    group.remove()


def test_where_no_group_can_be_made_the_error_says_why(tmp_path):
    with pytest.raises(NoMemoryGroup, match="has no memory controller"):
        MemoryGroup(MB, tmp_path)


def test_a_version_2_group_gets_its_limits(tmp_path, monkeypatch):
    (tmp_path / "cgroup.controllers").write_text("memory")
    monkeypatch.setattr("loadtest.fleet.memory_group._try_to_enter", lambda folder: None)
    made = MemoryGroup(MB, tmp_path)
    (made._folder / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
    (made._folder / "memory.peak").write_text("77\n")
    assert (made._folder / "memory.max").read_text() == str(MB)
    assert (made._folder / "memory.swap.max").read_text() == "0"
    assert made.kills == 1 and made.peak_bytes == 77
