"""Free loopback ports."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack


def free_ports(count: int) -> int:
    """Return the first of `count` consecutive ports on which nothing listens.

    The ports are free when this returns. They are chosen at random, so that concurrent callers rarely get the same
    ones. The range is below the one from which systems choose ports for outgoing connections.
    """
    for _ in range(1_000):
        first = random.randrange(12_000, 32_000 - count)
        if _all_free(range(first, first + count)):
            return first
    raise OSError(f"no {count} free ports in a row between 12000 and 32000")


def _all_free(ports: range) -> bool:
    with ExitStack() as stack:
        for port in ports:
            probe = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            try:
                probe.bind(("", port))
            except OSError:
                return False
    return True
