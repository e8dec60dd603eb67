"""Types of the commands' flags; an error names the wrong value."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from backends.engine.profile import UnknownProfile, load_profile, profile_names

T = TypeVar("T", int, float)
INPUT_ERROR = 3
"""The exit code of wrong input where 0, 1 and 2 are verdicts."""
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
PROFILES = f"a .toml file of `warmroute calibrate`, or one of {', '.join(profile_names())}"


def flags_exit_as_input(parser: argparse.ArgumentParser) -> None:
    """Let a wrong flag end with `INPUT_ERROR`: argparse's own exit code is a verdict in this command."""

    def error(message: str) -> NoReturn:
        parser.print_usage(sys.stderr)
        parser.exit(INPUT_ERROR, f"{parser.prog}: error: {message}\n")

    parser.error = error  # type: ignore[method-assign]


def checked(kind: Callable[[str], T], fits: Callable[[T], bool], what: str) -> Callable[[str], T]:
    """Return the type of a flag: a number of this kind that fits. `what` describes it in the error."""

    def parse(text: str) -> T:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not fits(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return parse


positive = checked(int, lambda value: value > 0, "a whole number above 0")
whole = checked(int, lambda value: value >= 0, "a whole number, 0 or above")
above_zero = checked(float, lambda value: 0.0 < value < float("inf"), "a number above 0")
seconds = checked(float, lambda value: 0.0 <= value < float("inf"), "a time; write seconds, 0 or more")
share = checked(float, lambda value: 0.0 < value < 1.0, "a share above 0 and below 1")
part = checked(float, lambda value: 0.0 <= value < 1.0, "a part of 1; write a number from 0 to below 1")


def writable(text: str) -> Path:
    """A file that can be written, in a folder that exists."""
    path = Path(text)
    if path.is_dir() or not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written; name a file in a folder that can be")
    return path


def size_bytes(text: str) -> int:
    """A size above 0, as in 512MiB, 1GiB or 800MB."""
    found = re.fullmatch(r"(\d+)([KMG]i?B)?", text)
    if found is not None and int(found[1]) > 0:
        return int(found[1]) * _UNITS[found[2] or ""]
    raise argparse.ArgumentTypeError(f"{text!r} is not a size, as in 512MiB or 1GiB")


def profile_name(text: str) -> str:
    """The name of a packaged profile, or the path of one in a file."""
    try:
        return load_profile(text).name
    except UnknownProfile as error:
        raise argparse.ArgumentTypeError(str(error)) from None
