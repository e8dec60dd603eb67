import os
import pty
import signal
import subprocess
import urllib.request
from contextlib import contextmanager
from functools import partial

import pytest

from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import warmroute

OTHERS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
LIMIT_S = 30


class Running:
    def __init__(self, child, port):
        self.child, self.port, self.lines = child, port, []

    def wait_for(self, text):
        for line in self.child.stdout:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"ended with {self.child.wait()} and without {text!r}:\n{''.join(self.lines)}")

    def answers(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/livez", timeout=LIMIT_S) as response:
            return response.status == 200

    def ends(self):
        return self.child.wait(LIMIT_S)


def _notice_hangups():
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextmanager
def running(*arguments, ready, terminal=False):
    port = free_ports(2)
    master, slave = pty.openpty() if terminal else (None, None)
    child = subprocess.Popen(
        [part.format(port=port, admin=port + 1) for part in warmroute(*arguments)],
        stdin=slave if terminal else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=_notice_hangups,
    )
    try:
        one = Running(child, port)
        one.wait_for(ready)
        yield one
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        for end in (master, slave):
            if end is not None:
                os.close(end)


SERVE = ("serve", "--worker", "http://127.0.0.1:1", "--port", "{port}", "--admin-port", "{admin}")
READY = "admin port listening"
COMMANDS = {"one": SERVE, "several": (*SERVE, "--processes", "2")}
at_night = partial(pytest.param, marks=pytest.mark.nightly)


@pytest.mark.parametrize("name", [at_night("one"), "several"])
def test_a_gateway_logs_other_signals_and_continues(name):
    with running(*COMMANDS[name], ready=READY) as gateway:
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            gateway.child.send_signal(number)
            assert "signal ignored" in gateway.wait_for(number.name)
        gateway.child.send_signal(signal.SIGHUP)
        assert "settings reloaded" in gateway.wait_for("SIGHUP")
        assert gateway.answers()
        gateway.child.send_signal(signal.SIGTERM)
        assert gateway.ends() == 0


@pytest.mark.parametrize("name", ["one", at_night("several")])
def test_at_a_terminal_sighup_drains(name):
    with running(*COMMANDS[name], ready=READY, terminal=True) as gateway:
        gateway.child.send_signal(signal.SIGHUP)
        gateway.wait_for("shutting down")
        assert gateway.ends() == 0


@pytest.mark.parametrize(
    "number",
    [at_night(signal.SIGUSR1), at_night(signal.SIGUSR2), at_night(signal.SIGHUP), signal.SIGINT],
    ids=lambda one: one.name,
)
def test_terminal_signals_do_not_reach_child_processes(number):
    """Ctrl-C and a closed terminal end the supervisor, which has the others drain."""
    with running(*COMMANDS["several"], ready=READY, terminal=True) as gateway:
        os.killpg(gateway.child.pid, number)
        if number in (signal.SIGUSR1, signal.SIGUSR2):
            gateway.wait_for(number.name)
            assert gateway.answers()
            gateway.child.send_signal(signal.SIGTERM)
        assert gateway.ends() == 0
        rest = "".join([*gateway.lines, gateway.child.stdout.read()])
        assert "process ended" not in rest and "Traceback" not in rest, rest


def test_the_worker_command_handles_signals_alike():
    with running("worker", "--port", "{port}", ready="kv events") as worker:
        for number in OTHERS:
            worker.child.send_signal(number)
            worker.wait_for(number.name)
        assert worker.child.poll() is None
        worker.child.send_signal(signal.SIGTERM)
        assert worker.ends() == 0
    with running("worker", "--port", "{port}", ready="kv events", terminal=True) as worker:
        worker.child.send_signal(signal.SIGHUP)
        assert worker.ends() == 0
