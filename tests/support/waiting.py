"""Wait for a condition instead of sleeping for a time."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

WAIT_S = 5.0

T = TypeVar("T")


async def eventually(condition: Callable[[], object], within_s: float = WAIT_S) -> None:
    """Return as soon as `condition()` holds.

    Raises:
        AssertionError: it does not within `within_s`.
    """
    end_s = asyncio.get_running_loop().time() + within_s
    while not condition():
        assert asyncio.get_running_loop().time() < end_s, "did not happen in time"
        await asyncio.sleep(0.002)


def block_until(condition: Callable[[], object], within_s: float = WAIT_S) -> None:
    """Return as soon as `condition()` holds, for tests without an event loop.

    Raises:
        AssertionError: it does not within `within_s`.
    """
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, "did not happen in time"
        time.sleep(0.005)


async def iterations(count: int) -> None:
    """Let the event loop run `count` times: everything that is ready happens, and nothing that needs a timer."""
    for _ in range(count):
        await asyncio.sleep(0)


async def delivered() -> None:
    """Wait until peers on the same event loop have read the bytes that were written before."""
    await iterations(10)  # two are enough: one to write, one to read


async def settled(value: Callable[[], T], count: int = 1_000) -> T:
    """Return `value()` once it is the same before and after `count` iterations of the event loop."""
    while True:
        before = value()
        await iterations(count)
        if value() == before:
            return before
