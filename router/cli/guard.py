"""Run a command, and print its errors as lines with a fix."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from router.config.problems import ConfigError

USAGE_ERROR = 2
INTERRUPTED = 130


def guarded(command: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    try:
        return command(arguments)
    except ConfigError as error:
        for problem in error.problems:
            print(f"warmroute: {problem}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has closed it; the interpreter would fail again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
