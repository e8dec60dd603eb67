"""The answer of a worker that goes on, made into the rest of the stream that the client has."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import ClassVar, Final

import msgspec

from backends.foreign_json import json_decoder
from router.gateway.layers.migration.leg_filter import LegFilter
from router.gateway.layers.migration.tracked_stream import IDS, TrackedStream
from router.requests.answers.sse import data_of
from router.requests.outgoing import AnswerFilter

IDS_IGNORED = "ids_ignored"
TOO_MUCH_TEXT = "too_much_text"
MOST_CHARACTERS_PER_TOKEN: Final = 64
"""A first text that is longer is the prompt, which vLLM prints if it ends within a character."""
LONG_TOKEN_CHARACTERS: Final = 24
"""A first text that is longer, and has a character for each token of the prompt, is a short prompt."""
SHARED: Final = ("id", "created", "model", "object", "system_fingerprint", "service_tier")
"""What all events of a stream have in common."""
_TEXTS: Final = ("content", "reasoning", "reasoning_content", "text")

Members = dict[str, msgspec.Raw]
MEMBERS: Final = json_decoder(Members)
CHOICES: Final = json_decoder(list[Members])
_ID_LIST: Final = json_decoder(list[int])
_STRING: Final = json_decoder(str)
_COUNTS: Final = json_decoder(dict[str, object])
_NULL: Final = msgspec.Raw(b"null")


class LaterLeg(LegFilter):
    """Passes on what a worker adds to an answer whose P + G were its prompt.

    Nothing passes before the worker has returned them. Its events get the id, the time and the model of the first leg,
    the usage is that of the whole answer, and the role comes once.
    """

    quick: ClassVar[bool] = False
    __slots__ = (
        "_before_text", "_before_tokens", "_first_tokens", "_given_tokens", "_ids", "_on_text", "_plausible",
        "_prompt_tokens", "_reasoning_tokens", "_shared",
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
        self._ids: array[int] | None = ids
        self._on_text: Callable[[], None] | None = on_text
        self._shared = shared_members(stream.first_event)
        self._before_tokens = len(stream.output)
        self._prompt_tokens = len(ids) - len(stream.output)
        self._before_text = stream.text_length
        self._reasoning_tokens = stream.reasoning_tokens
        self._first_tokens = 0
        self._given_tokens = len(ids)
        self._plausible = False

    @property
    def own_tokens(self) -> int | None:
        """How many tokens this leg has added; None if that is not known."""
        return len(self.stream.output) - self._before_tokens if self.stream.lost is None else None

    def _noted(self, event: bytes) -> bytes:
        try:
            return self._of(MEMBERS.decode(data_of(event)), event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return event if self._ids is None else b""  # a comment, or the end

    def _of(self, members: Members, event: bytes) -> bytes:
        choices = CHOICES.decode(members["choices"]) if "choices" in members else []
        choice = choices[0] if choices else None
        if self._ids is not None and not self._returns(self._ids, members, choice):
            self.broken = IDS_IGNORED
            return b""
        if choice is None:
            return self._joined(members, choices)
        if without_role(choice, event):
            return b""
        if not self._plausible and not self._fits(choice, event):
            self.broken = TOO_MUCH_TEXT
            return b""
        _forget_prompt(members, choice)
        return self._joined(members, choices)

    def _returns(self, ids: array[int], members: Members, choice: Members | None) -> bool:
        """Return whether the worker has taken the ids for its prompt: its first event says so."""
        returned = members.get("prompt_token_ids") or (choice or {}).get("prompt_token_ids")
        if returned is None or _ID_LIST.decode(returned) != ids.tolist():
            return False
        self._ids = None
        return True

    def _fits(self, choice: Members, event: bytes) -> bool:
        """Return whether the first text is no longer than its tokens can be."""
        found = IDS.search(event)
        if found is not None and found[2]:
            self._first_tokens += found[2].count(b",") + 1
        text = _text_of(choice)
        self._plausible = bool(text)
        tokens = max(1, self._first_tokens)
        most = min(MOST_CHARACTERS_PER_TOKEN * tokens, max(LONG_TOKEN_CHARACTERS * tokens, self._given_tokens - 1))
        return len(text) <= most

    def _joined(self, members: Members, choices: list[Members]) -> bytes:
        """Return the event as it would be in a stream that had gone on."""
        for choice in choices:
            if self._before_text and "logprobs" in choice:
                choice["logprobs"] = _shifted(choice["logprobs"], self._before_text)
        if choices:
            members["choices"] = raw_json(choices)
        for name in SHARED:
            if name in members and name in self._shared:
                members[name] = self._shared[name]
        if "usage" in members and bytes(members["usage"]).startswith(b"{"):
            members["usage"] = self._usage(members["usage"])
        event = self.stream.note(b"data: %b\n\n" % msgspec.json.encode(members))
        if choices and self.stream.shown and self._on_text is not None:
            on_text, self._on_text = self._on_text, None
            on_text()
        return event

    def _usage(self, usage: msgspec.Raw) -> msgspec.Raw:
        """Return the usage of the whole answer."""
        counts, prompt_tokens = _COUNTS.decode(usage), self._prompt_tokens
        own = counts.get("completion_tokens")
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


def without_role(choice: Members, event: bytes) -> bool:
    """Take the role out of a delta, and return whether the event has nothing else."""
    delta = MEMBERS.decode(choice["delta"]) if "delta" in choice else {}
    if "role" not in delta:
        return False
    if IDS.search(event) is None:
        return True
    del delta["role"]
    choice["delta"] = raw_json(delta)
    return False


def _text_of(choice: Members) -> str:
    delta = MEMBERS.decode(choice["delta"]) if "delta" in choice else choice
    texts = [delta[name] for name in _TEXTS if name in delta and bytes(delta[name]).startswith(b'"')]
    return "".join([_STRING.decode(text) for text in texts])


def _forget_prompt(members: Members, choice: Members) -> None:
    """Remove the prompt of this leg, which is given once, with a stream's first event."""
    members.pop("prompt_token_ids", None)
    members.pop("prompt_text", None)
    if "prompt_token_ids" in choice:
        choice["prompt_token_ids"] = _NULL


def shared_members(first_event: bytes) -> Members:
    """Return what all events have in common with the first event of the stream."""
    try:
        members = MEMBERS.decode(data_of(first_event))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return {name: members[name].copy() for name in SHARED if name in members}


def raw_json(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _shifted(logprobs: msgspec.Raw, by_characters: int) -> msgspec.Raw:
    """Return the log-probabilities of a completion with the offsets of the whole text."""
    if not bytes(logprobs).startswith(b"{"):
        return logprobs
    members = MEMBERS.decode(logprobs)
    if "text_offset" not in members:
        return logprobs
    members["text_offset"] = raw_json([offset + by_characters for offset in _ID_LIST.decode(members["text_offset"])])
    return raw_json(members)
