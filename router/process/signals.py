"""Signals beside SIGTERM and SIGINT. By default they end a process at once, in the middle of its streams."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from types import FrameType

log = logging.getLogger("warmroute.serve")

_NOTHING_TO_DO = {
    signal.SIGUSR1: "it means nothing here",
    signal.SIGUSR2: "it starts a successor only where takeover is set (--takeover)",
    signal.SIGHUP: "reload is not available yet; files of keys and certificates are read again when they change",
}


def hold_off() -> None:
    """From the start of a process until it has an event loop, they do nothing. SIGHUP from a terminal still ends it."""
    for number in _NOTHING_TO_DO:
        if signal.getsignal(number) is signal.SIG_DFL and not (number is signal.SIGHUP and _at_terminal()):
            signal.signal(number, _nothing)


def handle(loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> None:
    """Log each of them and go on; SIGHUP calls `end` where standard input is a terminal: it has been closed, and nobody
    is there to reload for. A SIGHUP that whoever started us has had ignored (nohup) stays so."""
    for number in _NOTHING_TO_DO:
        if number is not signal.SIGHUP:
            loop.add_signal_handler(number, say, number)
        elif _at_terminal():
            loop.add_signal_handler(number, end)
        elif signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, say, number)


def say(number: signal.Signals) -> None:
    """One line for a signal that changes nothing."""
    log.warning("signal ignored", extra={"signal": number.name, "reason": _NOTHING_TO_DO[number]})


def _at_terminal() -> bool:
    return os.isatty(0)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN, which processes started by this one would inherit."""
