"""One running answer, between the engine's clock and the HTTP handler that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from backends.engine.request import EngineRequestState, FinishReason
from backends.simulated.request import Stopping
from backends.simulated.vocabulary import Vocabulary

NO_TOKEN = -1


class ClientGone(Exception):
    """The client closed its connection."""


class StopText:
    """Find stop strings in text that arrives word by word, and hold back text that may still become one."""

    def __init__(self, strings: tuple[str, ...], *, keep: bool) -> None:
        self._strings = strings
        self._keep = keep
        self._longest = max(map(len, strings), default=1)
        self._held = ""

    def feed(self, text: str, *, last: bool, search: bool) -> tuple[str, str | None]:
        """Return the text to show now, and the stop string that was found. No text follows a stop string."""
        held = self._held + text
        found = min(((held.find(s), s) for s in self._strings if s in held), default=None) if search else None
        if found is not None:
            at, string = found
            self._held = ""
            return held[: at + len(string) if self._keep else at], string
        shown = len(held) if last else max(0, len(held) - self._longest + 1)
        self._held = held[shown:]
        return held[:shown], None


@dataclass(slots=True, eq=False)
class Generation:
    """One prompt's answer: its state in the engine, the tokens so far and why it ended.

    `text_parts` is the text for the client; `stop_reason` is the stop string or token id that ended it.
    """

    state: EngineRequestState
    index: int
    inbox: Inbox
    stopping: Stopping
    on_stop: Callable[[Generation], None]
    token_ids: list[int] = field(default_factory=list)
    text_parts: list[str] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    first_token_s: float | None = None
    last_token_s: float = 0.0
    stop_text: StopText | None = None

    def __post_init__(self) -> None:
        if self.stopping.strings:
            self.stop_text = StopText(self.stopping.strings, keep=self.stopping.keep_string)

    @property
    def plain(self) -> bool:
        """Whether only the length or the model ends this answer."""
        return not self.stopping.strings and not self.stopping.token_ids

    def take(self, token_id: int, vocabulary: Vocabulary, reason: FinishReason | None) -> str:
        """Add one delivered token. Return the text to show for it, or "" once the answer has ended.

        Calls `on_stop` if the answer ends here although the engine would have continued.
        """
        if self.finish_reason is not None:
            return ""
        self.finish_reason = reason
        if token_id == NO_TOKEN:
            return ""
        self.token_ids.append(token_id)
        text = vocabulary.text(token_id)
        shown = text if self.plain else self._watch(token_id, text, reason)
        self.text_parts.append(shown)
        if self.stop_reason is not None:
            self.finish_reason = FinishReason.STOP
            if reason is None:
                self.on_stop(self)
        return shown

    def _watch(self, token_id: int, text: str, reason: FinishReason | None) -> str:
        may_stop = len(self.token_ids) > self.stopping.min_tokens
        if may_stop and token_id in self.stopping.token_ids:
            self.stop_reason = token_id
            text = ""
        if self.stop_text is None:
            return text
        ends = reason is not None or self.stop_reason is not None
        shown, found = self.stop_text.feed(text, last=ends, search=may_stop)
        if found is not None:
            self.stop_reason = found
        return shown


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
