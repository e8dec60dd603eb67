"""The shared table of limits between processes: no request too many, and no charge or count that stays behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from router.config.model import LimitsConfig
from router.limits.caller import Charge
from router.limits.registry import RateLimits
from router.process.shared_memory import rate_limits
from router.process.shared_memory.ledger import Ledger, make_table
from router.process.shared_memory.rate_limits import RateLock

ROOT = Path(__file__).parents[3]
LIMITS = {
    "tenants": {"default": {"requests_per_minute": 1_000, "tokens_per_minute": 10**9, "max_concurrent_requests": 50}}
}
NOW_S = 500.0

ADMITS = """
import os, sys
import msgspec
from router.config.model import LimitsConfig
from router.limits.caller import Charge
from router.limits.registry import RateLimits
from router.process.shared_memory import rate_limits
from router.process.shared_memory.ledger import Ledger

rate_limits.PATIENCE_S = 30.0  # the host of the tests is busy, and a process must never go on without the lock here
table, process, ends = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "ends"
limits = RateLimits(msgspec.json.decode(sys.argv[4], type=LimitsConfig), Ledger(table, 4, process).rate_limits())
caller = limits.of(None, None)
sys.stdin.readline()
admitted = 0
for _ in range(2_000):
    charge = caller.admit(3, 500.0)
    if isinstance(charge, Charge):
        admitted += 1
        if ends:
            charge.settle(7, 500.0, served=True)
print(admitted, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def table():
    descriptor = make_table(4)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def children(table):
    started = []

    def start(ends):
        for process in range(4):
            arguments = [str(table), str(process), "ends" if ends else "stays", msgspec.json.encode(LIMITS).decode()]
            started.append(
                subprocess.Popen(
                    [sys.executable, "-c", ADMITS, *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=ROOT,
                    pass_fds=[table],
                )
            )
        for child in started:
            child.stdin.write("\n")
            child.stdin.flush()
        return started

    yield start
    for child in started:
        child.kill()
        child.communicate()


def limits(table):
    return RateLimits(msgspec.convert(LIMITS, LimitsConfig), Ledger(table, 4, 0).rate_limits())


def test_four_processes_admit_exactly_what_the_host_allows(table, children):
    counts = [int(child.stdout.readline()) for child in children(ends=True)]
    assert sum(counts) == 1_000
    (shown,) = limits(table).statistics([(None, None)], NOW_S)
    assert (shown["running"], shown["requests"]["remaining"]) == (0, 0)
    assert shown["tokens"]["remaining"] == 10**9 - 7_000


def test_a_killed_process_leaves_its_charges_and_loses_its_running_requests(table, children):
    started = children(ends=False)
    counts = [int(child.stdout.readline()) for child in started]
    assert sum(counts) == 50  # requests at once, over all processes
    victim = max(range(4), key=counts.__getitem__)
    os.kill(started[victim].pid, signal.SIGKILL)
    started[victim].wait()
    Ledger(table, 4, 0).clear(victim)
    (shown,) = limits(table).statistics([(None, None)], NOW_S)
    assert (shown["running"], shown["requests"]["remaining"]) == (50 - counts[victim], 950)
    caller = limits(table).of(None, None)
    assert isinstance(caller.admit(1, NOW_S), Charge)


def test_a_lock_that_another_process_keeps_delays_a_request_for_milliseconds(table, monkeypatch):
    hold = "import fcntl, sys; fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_EX, 1, 1 << 41)"
    hold += "; print(flush=True); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(table)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[table]
    )
    try:
        assert holder.stdout.readline() == b"\n"
        lock = RateLock(table)
        lock.acquire()
        assert lock.missed == 1
        lock.release()
        holder.kill()  # the system releases the lock of a process that dies
        holder.communicate()
        monkeypatch.setattr(rate_limits, "PATIENCE_S", 10.0)
        lock.acquire()
        assert lock.missed == 1
    finally:
        holder.kill()
        holder.communicate()
