import asyncio
import os
import sys

import pytest

from router.config.model import Config
from router.process.children import child_process, supervisor
from router.process.children.supervisor import Supervisor, serve

CONFIG = Config(host="127.0.0.1", port=0, admin_port=0)
CHILD = "router.cli.child"


@pytest.fixture
def dying(monkeypatch):
    """Processes that end at once and are restarted without a pause."""
    monkeypatch.setattr(child_process, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(child_process, "_command", lambda module, line: [sys.executable, "-c", "raise SystemExit(3)"])


async def test_the_supervisor_gives_up_if_no_process_starts(dying, capsys, caplog):
    assert await asyncio.wait_for(serve(CONFIG, 2, CHILD), 30) == 1
    assert "no process could be started in 5 tries" in capsys.readouterr().err
    ended = [record for record in caplog.records if record.message == "process ended"]
    assert len(ended) >= child_process.TRIES
    assert {record.how for record in ended} == {"exit code 3"}


async def test_a_process_that_hangs_at_its_start_is_killed(monkeypatch, caplog):
    monkeypatch.setattr(child_process, "START_LIMIT_S", 0.05)
    monkeypatch.setattr(child_process, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(
        child_process, "_command", lambda module, line: [sys.executable, "-c", "import time; time.sleep(60)"]
    )
    assert await asyncio.wait_for(serve(CONFIG, 2, CHILD), 30) == 1
    assert {record.how for record in caplog.records if record.message == "process ended"} == {"signal 9"}


async def test_close_releases_files_and_descriptors(dying):
    before = descriptors()
    one = Supervisor(CONFIG, 2, CHILD)
    folder = one._folder
    assert folder.stat().st_mode & 0o777 == 0o700
    await one.start()
    assert [child.number for child in one.children] == [0, 1]
    await one.aclose()
    assert not folder.exists()
    assert descriptors() <= before


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_port_in_use_is_reported(capsys):
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    async with taken:
        assert await supervisor.serve(Config(host="127.0.0.1", port=port, admin_port=0), 2, CHILD) == 1
    assert f"cannot listen: public port 127.0.0.1:{port}: address already in use" in capsys.readouterr().err
