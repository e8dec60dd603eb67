"""Commands in the test's own process, where no interpreter has to start."""

import signal
from collections.abc import Callable, Sequence

import pytest


def run_here(
    capsys: pytest.CaptureFixture[str], main: Callable[[Sequence[str]], int], arguments: Sequence[object]
) -> tuple[int, str]:
    """Run a command; return its exit code and what it printed. The handlers of signals stay as they were."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        code = main([str(word) for word in arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    printed = capsys.readouterr()
    return code, printed.out + printed.err
