"""When notes of a decision are taken: at once, or after the request is on its way to its worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Defer: TypeAlias = Callable[[Callable[[Any], None], Any], None]
"""Calls a function with one argument, later and in the order of the calls. The function only takes notes: no decision
depends on it."""


def run_now(note: Callable[[Any], None], about: Any) -> None:
    """Call `note` without delay: the usual `Defer`."""
    note(about)
