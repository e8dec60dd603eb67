"""The values that enter and leave the core."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from policies.view import WorkerId
from router.prefix.prompt import Prompt


class FailurePhase(StrEnum):
    """How far a request had come when its worker failed it. Later phases allow fewer retries."""

    CONNECT = "connect"
    """No connection: nothing was sent."""
    REFUSED = "refused"
    """The worker answered 503 before any event: pressure, not a fault. A 4xx, 429 included, is an answer to this client
    and no failure."""
    SENT = "sent"
    """Sent, then a death, a server error, a timeout or the loss of the worker before the first real event."""
    STREAM = "stream"
    """Failed after the first real event: the client has seen part of the answer."""


class Request(msgspec.Struct, frozen=True):
    """A request to place. `prompt` is None where it has no identity (routed by load alone).

    `prompt_tokens` is exact or estimated; `pinned` names the one worker that can serve it (a stored response).
    `endpoint_only` marks paths that are not understood: any healthy worker of the right model will do.
    """

    id: str
    path: str
    model: str | None
    prompt: Prompt | None
    prompt_tokens: int
    arrived_s: float
    max_tokens: int | None = None
    session_id: str | None = None
    priority: int = 0
    pinned: WorkerId | None = None
    stream: bool = True
    """False: the answer comes in one piece, so nobody sees when its prefill ended."""


class Usage(msgspec.Struct, frozen=True):
    """What a response reported; each is None where it did not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
