"""What is known of an answer that may go on elsewhere: its token ids, and how far the client has its text."""

from __future__ import annotations

import re
from array import array
from typing import Final

import msgspec

from backends.foreign_json import json_decoder
from router.gateway.layers.migration.eligibility import Ineligible
from router.gateway.layers.migration.later_events import shared_members
from router.gateway.layers.migration.request_fields import TextEvent
from router.gateway.layers.migration.whole_tokens import WholeTokens
from router.requests.answers.sse import data_of
from router.residency.chain import TOKEN_BYTES
from router.tokenization.body.parsed_body import CHAT_PATH

# Generated text cannot look like a member of an event, because its quotes are escaped.
IDS: Final = re.compile(rb'"token_ids"\s*:\s*(\[([\d,\s]*)\])')
PROMPT_IDS: Final = re.compile(rb'"prompt_token_ids"\s*:\s*(\[[\d,\s]*\])')
FINISH: Final = re.compile(rb'"finish_reason"\s*:\s*"(\w+)"')
_CONTENT: Final = re.compile(rb'"content"\s*:\s*"[^"]')
_TEXT: Final = re.compile(rb'"text"\s*:\s*"[^"]')
_REASONING: Final = re.compile(rb'"reasoning(?:_content)?"\s*:\s*"[^"]')
_TOOL_CALL: Final = re.compile(rb'"tool_calls"\s*:\s*\[\s*\{')
_IDS_BEGIN: Final = b'"token_ids":['
_GOES_ON: Final = b'"finish_reason":null'
_QUOTE: Final = ord('"')
_NULL: Final = b"null"
_ID_LIST = json_decoder(list[int])
_EVENT = json_decoder(TextEvent)


class TrackedStream:
    """The ids P of the prompt and G of the answer, as the events of all legs bring them.

    `clean` is how many ids of G belong to text that the client has, up to the end of a character. The worker holds
    incomplete characters back, so one token with text ends there; of several tokens, the last must be one of the
    `whole` tokens. A second worker whose prompt ended within a character would print the whole prompt with the next one
    (seen with vLLM 0.33). With `hides` the ids are not for the client. With `counts` the length of the text is needed,
    for the offsets of log-probabilities.
    """

    __slots__ = (
        "_counts", "_max_tokens", "_new_text", "_room", "_text", "_text_begin", "_whole", "asks_usage", "beginning",
        "clean", "finished", "has_role", "hides", "inside", "lost", "output", "prompt", "reasoning_tokens",
        "shown", "text_length", "unclear",
    )  # fmt: skip

    def __init__(
        self, path: str, max_tokens: int, whole: WholeTokens, *, hides: bool = True, counts: bool = False
    ) -> None:
        self._max_tokens = max_tokens
        self._counts = counts
        self._text = _CONTENT if path == CHAT_PATH else _TEXT
        self._text_begin = b'"content":"' if path == CHAT_PATH else b'"text":"'
        self._room = 0
        """How long G may get while `note_token` is used."""
        self.hides = hides
        self.asks_usage = False
        """The stream ends with its usage."""
        self.prompt: array[int] | None = None
        self.output = array("I")
        self.clean = 0
        self.inside: Ineligible | None = None
        """What the answer is in the middle of, if it cannot go on from there."""
        self.lost: Ineligible | None = None
        """Why the ids are not kept any more."""
        self.finished = False
        self.shown = False
        """The last event may go to the client: it has reasoning, a tool call, the finish reason, or text up to `clean`.
        """
        self.has_role = True
        """The client has the role of a chat, or gets it with the next event: it does not wait."""
        self.beginning = b""
        """An event with what all events have in common."""
        self.reasoning_tokens = 0
        self.unclear = False
        """Text has come since the last end of a character that is known."""
        self.text_length = self._new_text = 0
        self._whole = whole

    @property
    def refusal(self) -> Ineligible | None:
        """Why the answer cannot go on from here; None if it can."""
        if self.lost is not None:
            return self.lost
        if self.prompt is None:
            return Ineligible.NO_IDS
        return Ineligible.FINISHED if self.finished else self.inside

    @property
    def kept_bytes(self) -> int:
        return TOKEN_BYTES * (len(self.output) + (0 if self.prompt is None else len(self.prompt)))

    def ids(self) -> array[int]:
        """Return P + G, up to the text that the client has."""
        assert self.prompt is not None
        return self.prompt + self.output[: self.clean]

    def cut(self) -> None:
        """Cut G back to the text that the client has: another worker goes on from there."""
        del self.output[self.clean :]
        self.unclear, self._new_text = False, 0

    def note_token(self, event: bytes) -> bytes | None:
        """Note an event with one token and its text, as nearly all are, as `note` does; None for any other event."""
        output = self.output
        at, text = event.find(_IDS_BEGIN), event.find(self._text_begin)
        if at < 0 or text < 0 or event[text + len(self._text_begin)] == _QUOTE or b'"tool_calls"' in event:
            return None
        end, plain = event.find(b"]", at), self.clean == len(output) < self._room and self.inside is None
        if not plain or event.find(_GOES_ON) < 0:
            return None
        try:
            token = int(event[at + len(_IDS_BEGIN) : end])
            output.append(token)
        except (ValueError, OverflowError):
            return None
        self._whole.learn(token)
        self.clean += 1
        self.shown = True
        return b"%b%b%b" % (event[: at + len(_IDS_BEGIN) - 1], _NULL, event[end + 1 :]) if self.hides else event

    def note(self, event: bytes) -> bytes:
        """Note an event, and return it as the client gets it: without ids, if it did not ask for them."""
        found = IDS.search(event)
        if found is None:
            return self._without_ids(event)
        before = len(self.output)
        if self.lost is None:
            self._keep(found[2])
        if PROMPT_IDS.search(event) is not None:  # a completion's first event has both
            event = self._prompt(event)
            found = IDS.search(event)
        self._seen(event, len(self.output) - before)
        return event if not self.hides or found is None else _replaced(event, found)

    def _keep(self, ids: bytes) -> None:
        output = self.output
        try:
            if b"," in ids:
                output.extend(map(int, ids.split(b",")))
            elif ids:
                output.append(int(ids))
        except (ValueError, OverflowError):
            self.lose(Ineligible.NO_IDS)
        if len(output) + (0 if self.prompt is None else len(self.prompt)) > self._max_tokens:
            self.lose(Ineligible.LENGTH)

    def _seen(self, event: bytes, tokens: int) -> None:
        """Note how far the client has text, and whether the answer is complete."""
        self.shown = True
        if self._text.search(event) is not None:
            if self._counts:
                self._count_text(event)
            self.shown = self._ends_clean(tokens)
            if self.inside is Ineligible.REASONING:
                self.inside = None
        elif _REASONING.search(event) is not None:
            self.inside = self.inside or Ineligible.REASONING
            self.reasoning_tokens += len(self.output) - self.clean
            self.clean = len(self.output)
        else:
            self.shown = False
        if b'"tool_calls"' in event and _TOOL_CALL.search(event) is not None:
            self.shown, self.inside = True, Ineligible.TOOL_CALL
        if FINISH.search(event) is not None:
            self.finished = self.shown = True

    def _ends_clean(self, tokens: int) -> bool:
        """Return whether an event with text, of that number of tokens, is known to end between two characters."""
        output = self.output
        if tokens == 0:
            self.lose(Ineligible.NO_IDS)
            return True
        if tokens == 1 and self.clean == len(output) - 1:
            self._whole.learn(output[-1])
        self.unclear = tokens > 1 and output[-1] not in self._whole
        if self.unclear:
            return False
        self.clean = len(output)
        self.text_length += self._new_text
        self._new_text = 0
        return True

    def _count_text(self, event: bytes) -> None:
        try:
            choices = _EVENT.decode(data_of(event)).choices
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.lose(Ineligible.NO_IDS)
            return
        self._new_text += sum(len(choice.text) for choice in choices if isinstance(choice.text, str))

    def _without_ids(self, event: bytes) -> bytes:
        if b'"choices"' not in event:
            return event
        if PROMPT_IDS.search(event) is not None:
            return self._prompt(event)
        self._seen(event, 0)
        return event

    def _prompt(self, event: bytes) -> bytes:
        """Keep the ids of the prompt, which come once, with the first event."""
        found = PROMPT_IDS.search(event)
        assert found is not None
        shown = _replaced(event, found) if self.hides else event
        if self.prompt is None and self.lost is None:
            self.beginning = b"data: %b\n\n" % msgspec.json.encode(shared_members(_replaced(event, found)))
            try:
                self.prompt = array("I", _ID_LIST.decode(found[1]))
            except (ValueError, OverflowError, msgspec.DecodeError):
                self.lose(Ineligible.NO_IDS)
            if self.prompt is not None and len(self.prompt) > self._max_tokens:
                self.lose(Ineligible.LENGTH)
            elif self.prompt is not None and not self._counts:
                self._room = self._max_tokens - len(self.prompt)
        return shown

    def lose(self, why: Ineligible) -> None:
        self.lost = self.lost or why
        self.prompt, self.output, self.clean, self._room = None, array("I"), 0, 0


def _replaced(event: bytes, found: re.Match[bytes]) -> bytes:
    """Return the event with null in place of a list, as vLLM writes it where ids were not asked for."""
    return b"%b%b%b" % (event[: found.start(1)], _NULL, event[found.end(1) :])
