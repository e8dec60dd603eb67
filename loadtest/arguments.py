"""What the commands' flags take, with the message that names a wrong value."""

from __future__ import annotations

import argparse


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
