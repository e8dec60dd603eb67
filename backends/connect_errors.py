"""The reasons why a connection to a worker cannot be made."""

from __future__ import annotations

import errno
import socket

OWN_SHORTAGE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Errors that mean a shortage in this process: file descriptors, memory, ports."""
_NO_ANSWER = frozenset({errno.ETIMEDOUT, errno.ENETDOWN, errno.ENETUNREACH, socket.EAI_AGAIN})


def is_refusal(error: OSError) -> bool:
    if error.errno is not None:
        return error.errno == errno.ECONNREFUSED
    # asyncio joins the errors of several addresses in one message
    text, refusal = str(error), f"[Errno {errno.ECONNREFUSED}]"
    return refusal in text and text.count("[Errno ") == text.count(refusal)


def says_nothing(error: OSError) -> bool:
    """Return whether the error says nothing about the worker: no answer came, or this process has a shortage."""
    return isinstance(error, TimeoutError) or error.errno in _NO_ANSWER or error.errno in OWN_SHORTAGE
