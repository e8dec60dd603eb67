"""Wait for a condition instead of sleeping for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

WAIT_S = 5.0


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
