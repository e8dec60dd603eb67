"""The answer of a worker that goes on, made into the rest of the stream that the client has."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

import msgspec

from backends.foreign_json import json_decoder
from router.gateway.layers.migration.later_events import (
    UNREADABLE,
    UNREADABLE_ERRORS,
    LaterEvents,
    Members,
    object_in,
    raw_json,
    read,
    without_role,
)
from router.gateway.layers.migration.leg_filter import LegFilter
from router.gateway.layers.migration.tracked_stream import TrackedStream
from router.requests.outgoing import AnswerFilter

IDS_IGNORED = "ids_ignored"
TOO_MUCH_TEXT = "too_much_text"
MOST_CHARACTERS_PER_TOKEN: Final = 64
"""A first text that is longer is the prompt, which vLLM prints if it ends within a character."""
LONG_TOKEN_CHARACTERS: Final = 24
"""A first text that is longer, and has a character for each token of the prompt, is a short prompt."""
_TEXTS: Final = ("content", "reasoning", "reasoning_content", "text")

_ID_LIST: Final = json_decoder(list[int] | None)
_TEXT: Final = json_decoder(str | None)
_COUNTS: Final = json_decoder(dict[str, object] | None)
_NULL: Final = msgspec.Raw(b"null")


class LaterLeg(LegFilter):
    """Passes on what a worker adds to an answer whose P + G were its prompt.

    Nothing passes before the worker has returned them. Its events get the id, the time and the model of the first leg,
    the usage is that of the whole answer, and the role comes once.
    """

    __slots__ = (
        "_before_text", "_before_tokens", "_events", "_first_tokens", "_given_tokens", "_ids", "_plausible",
        "_reasoning_tokens",
    )  # fmt: skip

    def __init__(
        self,
        stream: TrackedStream,
        inner: AnswerFilter | None,
        may_go_on: Callable[[], bool],
        ids: array[int],
        on_text: Callable[[], None],
        *,
        holds: bool,
    ) -> None:
        """`on_text` is called once, when the first text of this leg goes to the client."""
        super().__init__(stream, inner, may_go_on, holds=holds)
        self._events = LaterEvents(stream.beginning, on_text)
        self._ids: array[int] | None = ids
        self._given_tokens = len(ids)
        self._before_tokens = len(stream.output)
        self._before_text = stream.text_length
        self._reasoning_tokens = stream.reasoning_tokens
        self._first_tokens = 0
        self._plausible = False

    @property
    def own_tokens(self) -> int | None:
        """How many tokens this leg has added; None if that is not known."""
        return len(self.stream.output) - self._before_tokens if self.stream.lost is None else None

    def quick(self, content: bytes) -> bytes | None:
        return None

    def _noted(self, event: bytes) -> bytes:
        try:
            return self._joined(event)
        except UNREADABLE_ERRORS:
            return self._give_up(UNREADABLE)

    def _too_long(self) -> bytes:
        return self._give_up(UNREADABLE)

    def _give_up(self, why: str) -> bytes:
        self.broken = why
        return b""

    def _joined(self, event: bytes) -> bytes:
        """Return the event as it would be in a stream that had gone on."""
        found = read(event)
        if found is None:
            is_end = self._ids is not None and self._done
            return self._give_up(IDS_IGNORED) if is_end else event if self._ids is None else b""
        members, choices = found
        choice = choices[0] if choices else None
        if self._ids is not None and not self._returns(self._ids, members, choice or {}):
            return self._give_up(IDS_IGNORED)
        if choice is not None:
            if self.stream.has_role and without_role(choice):
                return b""
            self.stream.has_role = True
            if not self._plausible and not self._fits(choice):
                return self._give_up(TOO_MUCH_TEXT)
            _forget_prompt(members, choice)
            self._shift(choice)
        if "usage" in members and (counts := _COUNTS.decode(members["usage"])) is not None:
            members["usage"] = self._usage(counts)
        event = self.stream.note(self._events.written(members, choices))
        if choice is not None and self.stream.shown:
            self._events.text_passes()
        return event

    def _returns(self, ids: array[int], members: Members, choice: Members) -> bool:
        """Return whether the worker has taken the ids for its prompt: its first event says so."""
        returned = members.get("prompt_token_ids") or choice.get("prompt_token_ids")
        if returned is None or _ID_LIST.decode(returned) != ids.tolist():
            return False
        self._ids = None
        return True

    def _fits(self, choice: Members) -> bool:
        """Return whether the first text is no longer than its tokens can be."""
        self._first_tokens += len(_ID_LIST.decode(choice["token_ids"]) or ()) if "token_ids" in choice else 0
        text = _text_of(choice)
        self._plausible = bool(text)
        tokens = max(1, self._first_tokens)
        most = min(MOST_CHARACTERS_PER_TOKEN * tokens, max(LONG_TOKEN_CHARACTERS * tokens, self._given_tokens - 1))
        return len(text) <= most

    def _shift(self, choice: Members) -> None:
        """Give the log-probabilities of a completion the offsets of the whole text."""
        logprobs = object_in(choice, "logprobs") if self._before_text else {}
        if "text_offset" in logprobs:
            offsets = _ID_LIST.decode(logprobs["text_offset"]) or ()
            logprobs["text_offset"] = raw_json([offset + self._before_text for offset in offsets])
            choice["logprobs"] = raw_json(logprobs)

    def _usage(self, counts: dict[str, object]) -> msgspec.Raw:
        """Return the usage of the whole answer."""
        prompt_tokens, own = self._given_tokens - self._before_tokens, counts.get("completion_tokens")
        completion_tokens = self._before_tokens + (own if isinstance(own, int) else 0)
        counts["prompt_tokens"], counts["completion_tokens"] = prompt_tokens, completion_tokens
        counts["total_tokens"] = prompt_tokens + completion_tokens
        details = counts.get("prompt_tokens_details")
        if isinstance(details, dict) and isinstance(cached := details.get("cached_tokens"), int):
            details["cached_tokens"] = min(cached, prompt_tokens)
        details = counts.get("completion_tokens_details")
        if isinstance(details, dict) and isinstance(reasoning := details.get("reasoning_tokens"), int):
            details["reasoning_tokens"] = reasoning + self._reasoning_tokens
        return raw_json(counts)


def _text_of(choice: Members) -> str:
    texts = object_in(choice, "delta") if "delta" in choice else choice
    return "".join([_TEXT.decode(texts[name]) or "" for name in _TEXTS if name in texts])


def _forget_prompt(members: Members, choice: Members) -> None:
    """Remove the prompt of this leg, which is given once, with a stream's first event."""
    members.pop("prompt_token_ids", None)
    members.pop("prompt_text", None)
    if "prompt_token_ids" in choice:
        choice["prompt_token_ids"] = _NULL
