from __future__ import annotations

import asyncio
import platform
import subprocess
import sys

import pytest

from router.config.model import LimitsConfig
from router.gateway.http.client.body_buffer_limit import BodyBufferLimit
from router.gateway.http.heap_trim import LARGE_BYTES, PAUSE_S, TRIM_AFTER_BYTES, HeapTrimmer

FREES = """
import ctypes
from router.gateway.http.heap_trim import map_large_blocks, trimmer
from tests.support.memory import status_bytes

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = (ctypes.c_void_p,)
map_large_blocks()
blocks = [libc.malloc(100_000) for _ in range(1_000)]
for block in blocks:
    ctypes.memset(block, 1, 100_000)
last = libc.malloc(100_000)
for block in blocks:
    libc.free(block)
before = status_bytes("VmRSS")
trimmer()()
assert before - status_bytes("VmRSS") > 80_000_000
"""


class FakeLoop:
    """Records timers, and runs executor work at once."""

    def __init__(self) -> None:
        self.timers: list = []

    def call_later(self, delay_s, callback):
        timer = asyncio.TimerHandle(delay_s, callback, (), self)
        self.timers.append((delay_s, callback, timer))
        return timer

    def _timer_handle_cancelled(self, handle):
        pass

    def get_debug(self):
        return False

    def run_in_executor(self, executor, work):
        work()


@pytest.fixture
def trims():
    return []


@pytest.fixture
def loop():
    return FakeLoop()


@pytest.fixture
def heap(loop, trims):
    return HeapTrimmer(loop, lambda: trims.append(1))


def test_large_bodies_trigger_a_trim(loop, heap, trims):
    budget = BodyBufferLimit(LimitsConfig(), heap.freed)
    budget.take(2 * TRIM_AFTER_BYTES, 2 * TRIM_AFTER_BYTES)
    for _ in range(TRIM_AFTER_BYTES // LARGE_BYTES - 1):
        budget.give_back(LARGE_BYTES)
    assert not loop.timers
    budget.give_back(LARGE_BYTES)
    budget.give_back(LARGE_BYTES)
    ((delay_s, give_back, _),) = loop.timers
    assert delay_s == PAUSE_S and not trims
    give_back()
    assert trims == [1] and heap.trims == 1
    budget.give_back(LARGE_BYTES)
    assert len(loop.timers) == 1


def test_ordinary_bodies_trigger_no_trim(loop, heap):
    for _ in range(10_000):
        heap.freed(LARGE_BYTES - 1)
    assert not loop.timers


def test_close_cancels_a_pending_trim(loop, heap):
    heap.freed(TRIM_AFTER_BYTES)
    heap.close()
    assert loop.timers[0][2].cancelled()


def test_without_glibc_no_trim_is_made(loop):
    HeapTrimmer(loop, None).freed(TRIM_AFTER_BYTES)
    assert not loop.timers


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator only")
def test_glibc_returns_freed_memory():
    """In a process of its own: `map_large_blocks` changes the allocator for good."""
    subprocess.run([sys.executable, "-c", FREES], check=True)
