from __future__ import annotations

from collections.abc import Callable, Iterable


def notify(callbacks: Iterable[Callable[..., None]], *event: object) -> None:
    for callback in tuple(callbacks):  # a callback may remove itself
        callback(*event)
