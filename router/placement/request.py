"""The values that enter and leave placement."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from policies.view import WorkerId
from router.residency.prompt import Prompt


class FailurePoint(StrEnum):
    """How far a request had come when its worker failed. Later points allow fewer retries."""

    LOCAL = "local"
    """Not sent: the gateway has no file descriptor, port or memory for a connection. The worker is not to blame."""
    CONNECT = "connect"
    """Not sent: the worker could not be reached."""
    REFUSED = "refused"
    """The worker answered 503 before any event: pressure, not a fault. A 4xx, 429 included, is an answer to this
    client and no failure, except for `UNSERVED`."""
    UNSERVED = "unserved"
    """The worker does not serve the model, because the gateway's list of its models was out of date. That is no fault
    of the worker. But it looks idle and would attract the next request, too, so it is avoided for a moment."""
    STOPPING = "stopping"
    """The worker answered that it shuts down. It takes no further request, and neither it nor the request is at
    fault."""
    SENT = "sent"
    """The request was sent; then the worker died or was lost before the first event."""
    LATE = "late"
    """The request was sent, and no event came within its limit. That is silence and no evidence: it counts against the
    worker only if the worker has done nothing else meanwhile, and enough others are left."""
    ANSWERED = "answered"
    """The worker answered with a server error before any event. The request may be the cause: vLLM answers 500 for
    errors inside one request, too. It counts against the worker only after another worker has served the same
    request."""
    STREAM = "stream"
    """The worker failed after the first event: the client has part of the answer."""


class SessionKind(StrEnum):
    """The kind of session that a request belongs to. Answers of one kind have similar lengths."""

    AGENT = "agent"
    """Has tools."""
    CONVERSATION = "conversation"
    """Has a session id and no tools."""
    SINGLE = "single"
    """Has neither."""


class Request(msgspec.Struct, frozen=True):
    """A request to place. `prompt` is None without an identity; the request is then placed by load alone.

    `prompt_tokens` is exact or estimated. `pinned` names the only worker that can serve the request (a stored
    response).
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
    """False: the answer comes in one piece, so the end of its prefill is not visible."""
    reads_cache: bool = True
    """False: vLLM computes the whole prompt, cached or not, because prompt log-probabilities were requested."""
    answers: int = 1
    """Answers requested (`n`). With several, vLLM may report the cached tokens of a later one, which found the blocks
    of the first one."""
    kind: SessionKind = SessionKind.SINGLE
    hinted_tokens: int | None = None
    """The client's own estimate of the answer's length."""
    route: str = "default"
    """The route that took the request."""
    policy: str = "default"
    """The policy that decides: a name in `policies`, or default."""

    @property
    def counted(self) -> bool:
        """Whether `prompt_tokens` is exact, and not an estimate from the size of the body or of the text."""
        return self.prompt is not None and self.prompt.exact

    @property
    def tells_cached(self) -> bool:
        """Whether the response reports the cached tokens that the prompt itself found."""
        return self.reads_cache and self.answers == 1

    def reported(self, cached_tokens: int, block_tokens: int) -> int:
        """Return the cached tokens that the response will report when the prompt finds `cached_tokens`.

        vLLM runs several answers or prompts as separate requests. A stream reports the first one that answers. An
        answer in one piece reports the last one, which finds the blocks of the earlier ones.
        """
        prompt = self.prompt
        if not self.reads_cache or prompt is None or self.stream:
            return cached_tokens
        brought = prompt.own_tokens if self.answers > 1 else prompt.shared_tokens
        return max(cached_tokens, (min(brought, prompt.own_tokens - 1)) // block_tokens * block_tokens)


class Usage(msgspec.Struct, frozen=True):
    """The usage that a response reported; a missing field is None."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
