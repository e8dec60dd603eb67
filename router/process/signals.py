"""Signals other than SIGTERM and SIGINT, which by default end a process in the middle of its streams."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from types import FrameType

log = logging.getLogger("warmroute.process")

_HANDLED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
_NOTHING_TO_DO = {
    signal.SIGUSR1: "it has no meaning here",
    signal.SIGUSR2: "it starts a successor only if takeover is set (--takeover)",
}


def ignore_until_handled() -> None:
    """Ignore these signals until the event loop handles them. SIGHUP from a terminal still ends the process."""
    for number in _HANDLED:
        if signal.getsignal(number) is signal.SIG_DFL and not (number is signal.SIGHUP and _at_terminal()):
            signal.signal(number, _nothing)


def handle(loop: asyncio.AbstractEventLoop, end: Callable[[], None], reload: Callable[[], None]) -> None:
    """Call `reload` at SIGHUP. Log the other signals and continue.

    SIGHUP calls `end` if standard input is a terminal: the terminal has been closed. A SIGHUP that the parent process
    ignores (nohup) stays ignored.
    """
    for number in _NOTHING_TO_DO:
        loop.add_signal_handler(number, say, number)
    if _at_terminal():
        loop.add_signal_handler(signal.SIGHUP, end)
    elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, reload)


def say(number: signal.Signals) -> None:
    """Log a signal that has no effect."""
    log.warning("signal ignored", extra={"signal": number.name, "reason": _NOTHING_TO_DO[number]})


def _at_terminal() -> bool:
    return os.isatty(0)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing. Unlike SIG_IGN, this handler is not inherited by child processes."""
