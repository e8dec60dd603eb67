"""The values that enter and leave the core."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from policies.view import WorkerId
from router.residency.prompt import Prompt


class FailurePoint(StrEnum):
    """How far a request had come when its worker failed it. Later phases allow fewer retries."""

    LOCAL = "local"
    """Not even tried: we have no file descriptors, ports or memory left to connect with. The worker is not to blame."""
    CONNECT = "connect"
    """No connection: nothing was sent."""
    REFUSED = "refused"
    """The worker answered 503 before any event: pressure, not a fault. A 4xx, 429 included, is an answer to this client
    and no failure, with one exception: the next."""
    UNSERVED = "unserved"
    """The worker does not serve the model (any more): our list of its models was out of date. No fault of
    its own, but it looks idle and would draw the next request, too: others first for a moment."""
    SENT = "sent"
    """Sent, then a death, a timeout or the loss of the worker before the first real event."""
    ANSWERED = "answered"
    """The worker answered with a server error before any event. That may be the request's doing: vLLM answers 500 for
    errors inside one request, too. Held against the worker only once another one has served the same request."""
    STREAM = "stream"
    """Failed after the first real event: the client has seen part of the answer."""


class SessionKind(StrEnum):
    """What a request says of the session that it is part of: answers of one kind are about as long."""

    AGENT = "agent"
    """Brings tools along."""
    CONVERSATION = "conversation"
    """Has a session id, and no tools."""
    SINGLE = "single"
    """Neither."""


class Request(msgspec.Struct, frozen=True):
    """A request to place. `prompt` is None where it has no identity (routed by load alone).

    `prompt_tokens` is exact or estimated; `pinned` names the one worker that can serve it (a stored response).
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
    reads_cache: bool = True
    """False: vLLM computes the whole prompt, cached or not (prompt log-probabilities are asked for)."""
    answers: int = 1
    """Answers wanted (`n`). With several, vLLM reports the cached tokens of one that found the first one's blocks."""
    kind: SessionKind = SessionKind.SINGLE
    hinted_tokens: int | None = None
    """How long the client says that the answer will be."""

    @property
    def tells_cached(self) -> bool:
        """Whether the cached tokens that the answer reports are those that the prompt found."""
        return self.reads_cache and self.answers == 1

    def reported(self, cached_tokens: int, block_tokens: int) -> int:
        """What the answer will report where the prompt finds `cached_tokens`.

        Several answers or prompts are as many requests to the engine. A stream reports of the first that answers; a
        whole answer of the last, which finds what those before it have brought.
        """
        prompt = self.prompt
        if not self.reads_cache or prompt is None or self.stream:
            return cached_tokens
        brought = prompt.own_tokens if self.answers > 1 else prompt.shared_tokens
        return max(cached_tokens, (min(brought, prompt.own_tokens - 1)) // block_tokens * block_tokens)


class Usage(msgspec.Struct, frozen=True):
    """What a response reported; each is None where it did not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
