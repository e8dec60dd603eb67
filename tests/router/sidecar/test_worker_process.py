import asyncio
import os
import sys

from router.sidecar.worker_process import WorkerProcess
from tests.support.waiting import eventually

IGNORES_SIGTERM = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
)


def python(code):
    return [sys.executable, "-c", code]


async def run(code, **options):
    ended = asyncio.Event()
    child = WorkerProcess(python(code), ended.set)
    await child.start(**options)
    return child, ended


async def test_the_exit_code_is_the_commands():
    child, ended = await run("raise SystemExit(3)")
    await asyncio.wait_for(ended.wait(), 10)
    assert child.exit_code == 3
    await child.stop(1)


async def test_a_command_that_a_signal_ended_has_a_shells_exit_code():
    child, ended = await run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    await asyncio.wait_for(ended.wait(), 10)
    assert child.exit_code == 137


async def test_a_command_that_ends_by_sigterm_as_asked_ended_well():
    child, ended = await run("import time; time.sleep(60)")
    assert child.exit_code is None
    await child.stop(10)
    assert ended.is_set() and child.exit_code == 0


async def test_a_command_that_ignores_sigterm_is_killed():
    reading, writing = os.pipe()
    saved = os.dup(1)
    os.dup2(writing, 1)
    child, _ = await run(IGNORES_SIGTERM)
    os.dup2(saved, 1)
    await asyncio.to_thread(os.read, reading, 1)  # SIGTERM is ignored from here on
    await child.stop(0.05)
    assert child.exit_code == 137
    for descriptor in (reading, writing, saved):
        os.close(descriptor)


async def test_a_command_that_is_not_there_ends_with_127(caplog):
    ended = asyncio.Event()
    child = WorkerProcess(["/no/such/command"], ended.set)
    await child.start()
    assert ended.is_set() and child.exit_code == 127 and "/no/such/command" in str(caplog.records[0].__dict__)
    await child.stop(1)


async def test_processes_that_the_command_leaves_behind_are_killed(tmp_path):
    out = tmp_path / "pid"
    code = f"import subprocess; open({str(out)!r}, 'w').write(str(subprocess.Popen(['sleep', '60']).pid))"
    _, ended = await run(code)
    await asyncio.wait_for(ended.wait(), 10)
    left = int(out.read_text())

    def gone():
        try:
            return open(f"/proc/{left}/stat").read().rsplit(")", 1)[1].split()[0] == "Z"
        except OSError:
            return True

    await eventually(gone)


async def test_a_service_managers_variables_stay_with_the_sidecar():
    environment = {**os.environ, "NOTIFY_SOCKET": "/run/x", "KEPT": "1"}
    child, ended = await run(
        "import os, sys; sys.exit(5 if 'NOTIFY_SOCKET' not in os.environ and os.environ['KEPT'] == '1' else 6)",
        environment=environment,
    )
    await asyncio.wait_for(ended.wait(), 10)
    assert child.exit_code == 5
