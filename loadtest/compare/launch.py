"""Start one router, wait until it knows every worker, and stop it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from loadtest.compare.contenders import Contender, Site
from loadtest.fleet.process import Process, StartError, started

READY_LIMIT_S = 60.0
SETTLE_S = 1.0
"""Pause after the last worker is registered: the peers do not report when their event subscriptions are ready."""


@contextmanager
def running_router(contender: Contender, site: Site, log: Path) -> Iterator[Process]:
    """Run the router as a process, and yield it once every worker is registered.

    Raises:
        StartError: the router ended, or did not register every worker in time.
    """
    with ExitStack() as stack:
        process = started(stack, contender.command(site), contender.name, log=log)
        _wait_until_registered(contender, site, process)
        time.sleep(SETTLE_S)
        yield process


def _wait_until_registered(contender: Contender, site: Site, process: Process) -> None:
    end_s = time.monotonic() + READY_LIMIT_S
    while (count := contender.registered(site)) < len(site.workers):
        if not process.alive:
            raise process.ended()
        if time.monotonic() > end_s:
            raise StartError(
                f"{contender.name} knew {count} of {len(site.workers)} workers after {READY_LIMIT_S:.0f} s:\n"
                f"{process.tail()}"
            )
        time.sleep(0.2)
