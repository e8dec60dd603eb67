"""One running answer, between the engine's clock and the HTTP handler that waits for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from backends.engine.request import EngineRequestState, FinishReason
from backends.simulated.vocabulary import Vocabulary

NO_TOKEN = -1


class ClientGone(Exception):
    """The client closed its connection."""


@dataclass(slots=True, eq=False)
class Generation:
    """One prompt's answer: its state in the engine, the tokens so far, their text, and why it ended."""

    state: EngineRequestState
    index: int
    inbox: Inbox
    token_ids: list[int] = field(default_factory=list)
    text_parts: list[str] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    first_token_s: float | None = None
    last_token_s: float = 0.0

    def take(self, token_id: int, vocabulary: Vocabulary, reason: FinishReason | None) -> str:
        """Add one delivered token, and return its text; "" once the answer has ended."""
        if self.finish_reason is not None:
            return ""
        self.finish_reason = reason
        if token_id == NO_TOKEN:
            return ""
        self.token_ids.append(token_id)
        text = vocabulary.text(token_id)
        self.text_parts.append(text)
        return text


Delivery = tuple[Generation, int, FinishReason | None]
"""A generation, its new token (`NO_TOKEN` if it was aborted) and why it ended, if it did."""


class Inbox:
    """The tokens of one HTTP request, with all its prompts, from the engine's clock to the HTTP handler."""

    def __init__(self) -> None:
        self._pending: list[Delivery] = []
        self._waiter: asyncio.Future[None] | None = None
        self._gone = False

    def put(self, delivery: Delivery) -> None:
        self._pending.append(delivery)
        self._wake()

    def client_gone(self) -> None:
        self._gone = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Delivery]:
        """Return everything since the last call, at least one token; raises `ClientGone`."""
        if not self._pending and not self._gone:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._gone:
            raise ClientGone
        taken, self._pending = self._pending, []
        return taken
