import os
import signal
import sys

import psutil
import pytest

from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process, StartError, uninterrupted
from tests.support.waiting import block_until

FOREVER = "import time; time.sleep(600)"


def runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def python(code, name="child", **options):
    return Process([sys.executable, "-c", code], name, **options)


def test_a_line_is_waited_for_and_the_rest_goes_to_the_log(tmp_path):
    log = tmp_path / "child.log"
    process = python("print('starting', flush=True); print('url http://x:1', flush=True)", log=log)
    assert process.wait_for(r"url (\S+)", 20.0).group(1) == "http://x:1"
    process.stop()
    assert log.read_text() == "starting\nurl http://x:1\n"


def test_a_child_that_ends_is_an_error_with_its_last_words():
    process = python("print('no such model'); raise SystemExit(3)", "vllm 0")
    with pytest.raises(StartError, match="vllm 0 ended with code 3:\nno such model"):
        process.wait_for("ready", 20.0)


def test_a_child_that_never_says_so_is_an_error():
    process = python("print('loading', flush=True); " + FOREVER)
    with pytest.raises(StartError, match=r"not ready within 1 s"):
        process.wait_for("ready", 1.0)
    process.stop()
    assert not process.alive


def test_the_environment_is_added_to_ours():
    process = python("import os; print('got', os.environ['EXTRA'], 'PATH' in os.environ)", environment={"EXTRA": "7"})
    assert process.wait_for("got 7 True", 20.0)
    process.stop()


def test_a_childs_children_end_with_it():
    code = (
        "import signal, subprocess, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0));"
        f"child = subprocess.Popen([sys.executable, '-c', {FOREVER!r}]); print('child', child.pid, flush=True);"
        "child.wait()"
    )
    process = python(code)
    grandchild = int(process.wait_for(r"child (\d+)", 20.0).group(1))
    process.stop()
    block_until(lambda: not runs(grandchild))
    process.stop()  # twice is no error
    assert os.getpid() != grandchild


def test_free_ports_are_in_a_row_and_free():
    import socket

    first = free_ports(16)
    sockets = [socket.socket() for _ in range(16)]
    for number, sock in enumerate(sockets):
        sock.bind(("127.0.0.1", first + number))
    for sock in sockets:
        sock.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_waits_until_the_child_is_noted_down(number):
    before = signal.signal(number, signal.default_int_handler)
    noted = []

    def start():
        with uninterrupted():
            os.kill(os.getpid(), number)
            noted.append(python("pass"))

    try:
        with pytest.raises(KeyboardInterrupt):
            start()
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    noted[0].stop()
