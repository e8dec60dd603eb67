"""One running answer, between the engine's clock and the HTTP handler that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

from backends.engine.request import EngineRequestState, FinishReason
from backends.simulated.decoding.detokenizer import AnswerText
from backends.simulated.decoding.draws import SeededDraws
from backends.simulated.errors import ApiError

NO_TOKEN = -1


class ClientGone(Exception):
    """The client closed its connection."""


class EngineDied(ApiError):
    """The engine ended in the middle of an answer."""

    def __init__(self) -> None:
        super().__init__(
            "The server had an error while processing your request.", status=HTTPStatus.INTERNAL_SERVER_ERROR
        )


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one prompt is answered. `draws` is None if its tokens are random. `stop_ids` end the answer without text."""

    draws: SeededDraws | None
    stop_ids: frozenset[int]
    eos_id: int | None
    min_tokens: int = 0


@dataclass(slots=True, eq=False)
class Generation:
    """One prompt's answer: its state in the engine, the tokens so far, their text, and why it ended."""

    state: EngineRequestState
    index: int
    inbox: Inbox
    sampling: Sampling
    text: AnswerText
    stopped: Callable[[Generation], None]
    """Called when a token or its text ends the answer before the engine does."""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    first_token_s: float | None = None
    last_token_s: float = 0.0

    @property
    def text_parts(self) -> list[str]:
        return self.text.parts

    def take(self, token_id: int, reason: FinishReason | None) -> str:
        """Add one delivered token, and return the text that a client gets now; "" once the answer has ended."""
        if self.finish_reason is not None:
            return ""
        self.finish_reason = reason
        if token_id == NO_TOKEN:
            return self.text.flush()
        self.token_ids.append(token_id)
        if token_id in self.sampling.stop_ids and len(self.token_ids) > self.sampling.min_tokens:
            self._stop(None if token_id == self.sampling.eos_id else token_id)
            return self.text.flush()
        shown = self.text.take(token_id, len(self.token_ids))
        if self.text.stop_string is not None:
            self._stop(self.text.stop_string)
        return shown if self.finish_reason is None else shown + self.text.flush()

    def _stop(self, stop_reason: str | int | None) -> None:
        self.finish_reason, self.stop_reason = FinishReason.STOP, stop_reason
        self.stopped(self)


Delivery = tuple[Generation, int, FinishReason | None]
"""A generation, its new token (`NO_TOKEN` if it was aborted) and why it ended, if it did."""


class Inbox:
    """The tokens of one HTTP request, with all its prompts, from the engine's clock to the HTTP handler."""

    def __init__(self) -> None:
        self._pending: list[Delivery] = []
        self._waiter: asyncio.Future[None] | None = None
        self._gone = False
        self._died = False

    def put(self, delivery: Delivery) -> None:
        self._pending.append(delivery)
        self._wake()

    def client_gone(self) -> None:
        self._gone = True
        self._wake()

    def engine_died(self) -> None:
        self._died = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Delivery]:
        """Return everything since the last call, at least one token; raises `ClientGone` or `EngineDied`."""
        if not self._pending and not self._gone and not self._died:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._gone:
            raise ClientGone
        if self._died:
            raise EngineDied
        taken, self._pending = self._pending, []
        return taken
