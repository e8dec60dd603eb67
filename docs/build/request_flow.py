"""The reference page of a request's flow: a figure and the transition table, made from `router.gateway.flow`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final, TypeVar

from router.gateway.flow.transitions import TRANSITIONS, Effect, Event, Guard, RequestState, Transition

Name = TypeVar("Name", bound=IntEnum)

STATE_TEXT: Final = {
    RequestState.IDENTIFYING: "the body is read, and the prompt is identified",
    RequestState.PLACING: "the dispatcher is asked for a worker",
    RequestState.QUEUED: "no worker is ready, or the route is at its limit",
    RequestState.HELD: "the policy keeps the request back for a better moment",
    RequestState.WAITING: "an attempt runs; nothing of its worker's answer has gone to the client",
    RequestState.STREAMING: "the attempt's answer goes to the client",
    RequestState.TUNNEL: "the protocols were switched; bytes go both ways",
    RequestState.OVER: "the request has ended; no row leaves this state",
}
EVENT_TEXT: Final = {
    Event.IDENTIFIED: "the request is ready to be placed",
    Event.REFUSED: "the gateway or the dispatcher refuses the request, or it has been queued for too long",
    Event.PLACED: "load is reserved on a worker for a new attempt",
    Event.NO_WORKER: "no worker is ready, or the route is at its limit",
    Event.HOLD: "the policy holds the request, or it waits for its turn, if need be once more",
    Event.OFFERED: "a queue offers the request again",
    Event.OPENED: "the attempt's first real event or body byte arrived",
    Event.ANSWERED: "the attempt's answer is complete",
    Event.DECLINED: "the attempt's answer is complete and its status is 4xx",
    Event.ERRED: "the attempt's answer is a complete server error, and no other worker can take over",
    Event.FAILED: "the attempt failed",
    Event.SWITCHED: "the worker agreed to a protocol switch",
    Event.COMMENT_DUE: "the client of a stream has seen nothing for a while",
    Event.STALLED: "the worker sent nothing, or too little, for too long",
    Event.CLIENT_STALLED: "the client read nothing for too long",
    Event.STOPPED: "the total time is up, the gateway shuts down, or the gateway has a defect",
    Event.CLIENT_GONE: "the client's connection is closed",
    Event.HANDED_ON: "the answer leaves a worker that drains",
}
EFFECT_TEXT: Final = {
    Effect.PLACE: "ask the dispatcher for a worker",
    Effect.NEXT_LEG: "go on with the plan's next leg: ask the dispatcher for its worker",
    Effect.QUEUE: "enter the queue of the route at its limit, or else the no-worker queue",
    Effect.HOLD: "enter the hold queue",
    Effect.LEAVE: "leave the queues and stop identification",
    Effect.SEND: "send the request to the attempt's worker",
    Effect.CANCEL: "abort the attempt and release its load as cancelled",
    Effect.RETRY: "release the attempt's load as failed, and ask for another worker",
    Effect.RESUME: "let the answer go on: ask the dispatcher for a worker that gets it as prompt",
    Effect.FAIL: "release the attempt's load as failed",
    Effect.FINISH: "release the attempt's load as finished, with the usage it reported",
    Effect.FINISH_LEG: "release the attempt's load as finished, and keep its answer for the next leg",
    Effect.RESPOND: "write the response head and the bytes so far; later reads go directly to the client",
    Effect.COMPLETE: "end the client's response",
    Effect.PASS_ERROR: "release the attempt's load as failed, and pass its error on",
    Effect.SWITCH: "write the 101 response and connect both sides",
    Effect.COMMENT: "write an SSE comment to the client",
    Effect.REPLY: "answer with an error of the gateway",
    Effect.BREAK_OFF: "end the begun response with an error event, or cut it",
    Effect.ABORT_CLIENT: "close the client's connection",
    Effect.END: "write the request log; the client may send the next request",
}
GUARD_TEXT: Final = {
    Guard.ALWAYS: "",
    Guard.EARLIER_LEG: "not the plan's last leg",
    Guard.COMMENTED: "comments were written",
    Guard.RESUMES: "the answer can go on elsewhere",
}

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
