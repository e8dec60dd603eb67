"""Types of the commands' flags; an error names the wrong value."""

from __future__ import annotations

import argparse
import re

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def positive(text: str) -> int:
    """A whole number above 0."""
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")


def whole(text: str) -> int:
    """0, or a whole number above."""
    if text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 0 or above")


def above_zero(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if 0.0 < value < float("inf"):
        return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")


def size_bytes(text: str) -> int:
    """A size above 0, as in 512MiB, 1GiB or 800MB."""
    found = re.fullmatch(r"(\d+)([KMG]i?B)?", text)
    if found is not None and int(found[1]) > 0:
        return int(found[1]) * _UNITS[found[2] or ""]
    raise argparse.ArgumentTypeError(f"{text!r} is not a size, as in 512MiB or 1GiB")
