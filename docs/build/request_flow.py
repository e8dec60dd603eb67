"""The reference page of a request's flow: a figure and the transition table, made from `router.gateway.flow`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import TypeVar

from router.gateway.flow.transitions import (
    EFFECT_TEXT,
    EVENT_TEXT,
    GUARD_TEXT,
    STATE_TEXT,
    TRANSITIONS,
    Event,
    RequestState,
    Transition,
)

Name = TypeVar("Name", bound=IntEnum)

STATE_HEADS = ("state", "meaning")
ROW_HEADS = ("state", "event", "if", "effects, in order", "next state")
EVENT_HEADS = ("event", "meaning")
EFFECT_HEADS = ("effect", "meaning")
_ENDINGS = frozenset({Event.STOPPED, Event.CLIENT_GONE})
"""Events that end every state: the figure leaves them out."""


def figure() -> list[str]:
    """Return the figure as Mermaid: one arrow from state to state, with the events that take it."""
    arrows: dict[tuple[RequestState, RequestState], dict[str, None]] = {}
    for row in TRANSITIONS:
        if row.to is not row.state and row.event not in _ENDINGS:
            arrows.setdefault((row.state, row.to), {})[row.event.name] = None
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {RequestState.IDENTIFYING.name}"]
    lines += [f"    {start.name} --> {end.name}: {', '.join(events)}" for (start, end), events in arrows.items()]
    return [*lines, f"    {RequestState.OVER.name} --> [*]", "```"]


def names(texts: Mapping[Name, str]) -> Iterable[tuple[str, ...]]:
    """Return table rows: each name and its meaning."""
    return ((f"`{name.name}`", text) for name, text in texts.items())


def states() -> Iterable[tuple[str, ...]]:
    return names(STATE_TEXT)


def events() -> Iterable[tuple[str, ...]]:
    return names(EVENT_TEXT)


def effects() -> Iterable[tuple[str, ...]]:
    return names(EFFECT_TEXT)


def transitions() -> Iterable[tuple[str, ...]]:
    return map(_transition, TRANSITIONS)


def _transition(row: Transition) -> tuple[str, ...]:
    named = ", ".join(f"`{effect.name}`" for effect in row.effects)
    return f"`{row.state.name}`", f"`{row.event.name}`", GUARD_TEXT[row.guard], named, f"`{row.to.name}`"
