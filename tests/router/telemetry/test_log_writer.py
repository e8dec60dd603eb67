import contextlib
import logging
import os
import re
import subprocess
import sys
import threading
import time

import pytest

from router.telemetry import log_writer as module
from router.telemetry.log_writer import EXIT_S, STUCK_S, LogWriter
from router.telemetry.logs import EventHandler, lines_dropped, setup_logging
from tests.support.waiting import block_until

LINE = "x" * 99


class Pipe:
    def __init__(self):
        self.reader, writer = os.pipe()
        self.sink = os.fdopen(writer, "w")
        self.taken = b""

    def read(self, until):
        """Everything up to a line that matches, in a thread's time."""
        received = b""
        while not re.search(until, received):
            received += os.read(self.reader, 65_536)
        return received.decode().splitlines()

    def take(self):
        """Read what is there; all whole lines taken so far."""
        os.set_blocking(self.reader, False)
        with contextlib.suppress(BlockingIOError):
            self.taken += os.read(self.reader, 65_536)
        os.set_blocking(self.reader, True)
        return self.taken[: self.taken.rfind(b"\n") + 1].decode().splitlines()

    def close(self):
        os.close(self.reader)


@pytest.fixture
def pipe():
    made = Pipe()
    yield made
    made.close()


@pytest.fixture
def root():
    root = logging.getLogger()
    before = root.level
    yield root
    for handler in [handler for handler in root.handlers if isinstance(handler, EventHandler)]:
        root.removeHandler(handler)
    root.setLevel(before)
    logging.getLogger("warmroute").setLevel(logging.NOTSET)


def dropped(count):
    return f"{count} dropped"


def reported(lines):
    """The sum of the reports: the writer may report more than once while lines are dropped."""
    return sum(int(line.removesuffix(" dropped")) for line in lines if line.endswith(" dropped"))


def test_an_unread_pipe_blocks_no_caller(pipe):
    writer = LogWriter(pipe.sink, dropped)
    began_s = time.monotonic()
    for _ in range(100_000):
        writer.put(LINE)
    assert time.monotonic() - began_s < 5
    waiting = 100_000 - writer.lines_dropped
    assert module.MOST_LINES <= waiting <= module.MOST_LINES + 2_000  # what the pipe holds comes on top
    block_until(lambda: pipe.take().count(LINE) == waiting and reported(pipe.take()) == writer.lines_dropped, 10)
    assert all(line == LINE or line.endswith(" dropped") for line in pipe.take())
    writer.put("on again")
    assert pipe.read(rb"again\n") == ["on again"]


def test_lines_are_bounded_in_bytes_too(pipe):
    writer = LogWriter(pipe.sink, dropped)
    for _ in range(100):
        writer.put("x" * 1_000_000)
    assert 94 <= writer.lines_dropped <= 96


def test_an_exit_does_not_wait_long_for_a_stuck_sink(pipe):
    writer = LogWriter(pipe.sink, dropped)
    for _ in range(5_000):
        writer.put(LINE)
    began_s = time.monotonic()
    writer.close()
    assert time.monotonic() - began_s < STUCK_S + 1


def test_an_exit_waits_for_a_slow_sink(pipe):
    writer = LogWriter(pipe.sink, dropped)
    for number in range(3_000):
        writer.put(f"{number} {LINE}")
    received = bytearray()

    def read_slowly():
        while len(received) < 3_000 * 104:
            received.extend(os.read(pipe.reader, 8_192))
            time.sleep(0.01)

    reading = threading.Thread(target=read_slowly, daemon=True)
    reading.start()
    began_s = time.monotonic()
    writer.close()
    assert time.monotonic() - began_s < EXIT_S
    assert writer.lines_dropped == 0
    block_until(lambda: received.count(b"\n") == 3_000, 10)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_lines_dropped_on_a_full_disk_are_reported_later():
    with open("/dev/full", "w") as full:
        writer = LogWriter(full, dropped)
        writer.put("one")
        writer.put("two")
        block_until(lambda: writer.lines_dropped == 2, 10)
        reader, room = os.pipe()
        os.dup2(room, full.fileno())
        writer.put("three")
        received = b""
        while b"dropped" not in received:
            received += os.read(reader, 1_000)
        assert received.splitlines() == [b"three", b"2 dropped"]
        os.close(room)
    os.close(reader)


def test_a_closed_reader_raises_nothing(pipe):
    writer = LogWriter(pipe.sink, dropped)
    os.dup2(os.open(os.devnull, os.O_RDONLY), pipe.reader)  # nobody has the pipe's other end now
    for _ in range(10):
        writer.put(LINE)
    block_until(lambda: writer.lines_dropped == 10, 10)
    writer.close()


def test_a_sink_that_does_not_block_is_waited_for(pipe):
    os.set_blocking(pipe.sink.fileno(), False)
    writer = LogWriter(pipe.sink, dropped)
    for _ in range(3_000):
        writer.put(LINE)
    writer.put("the end")
    assert pipe.read(rb"the end\n") == [LINE] * 3_000 + ["the end"]


def test_dropped_lines_are_reported_in_the_chosen_format(pipe, root, monkeypatch):
    monkeypatch.setattr(module, "MOST_LINES", 2_000)
    setup_logging("info", "json", pipe.sink, process=3)
    log = logging.getLogger("warmroute.x")
    for _ in range(6_000):
        log.info("worker ready")
    assert lines_dropped() > 0
    (line,) = [each for each in pipe.read(rb"lines dropped.*\n") if "dropped" in each]
    assert '"level": "warning", "logger": "warmroute.logs", "event": "log lines dropped"' in line
    assert f'"lines": {lines_dropped()}' in line and '"process_index": 3' in line


def test_nothing_is_lost_at_a_normal_exit():
    program = """
import logging
from router.telemetry.logs import setup_logging
setup_logging("info")
for number in range(5_000):
    logging.getLogger("warmroute.x").info("line", extra={"number": number})
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert [int(line.rpartition("=")[2]) for line in ran.stderr.splitlines()] == list(range(5_000))
