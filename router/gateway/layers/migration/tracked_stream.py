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
_PROMPT_IDS: Final = re.compile(rb'"prompt_token_ids"\s*:\s*(?=\[)')
FINISH: Final = re.compile(rb'"finish_reason"\s*:\s*"(\w+)"')
_CONTENT: Final = re.compile(rb'"content"\s*:\s*"[^"]')
_TEXT: Final = re.compile(rb'"text"\s*:\s*"[^"]')
_REASONING: Final = re.compile(rb'"reasoning(?:_content)?"\s*:\s*"[^"]')
_TOOL_CALL: Final = re.compile(rb'"tool_calls"\s*:\s*\[\s*\{')
_PLAIN: Final = rb'(data: \{[^\n]*?"%s":")(?:[^"\\]|\\.)+("[^\n]*?"token_ids":\[)\d+(\][^\n]*\}\n\n)'
_PLAIN_CHAT: Final = re.compile(_PLAIN % b"content")
_PLAIN_COMPLETION: Final = re.compile(_PLAIN % b"text")
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
        "_compared", "_counts", "_end", "_head", "_hidden_end", "_max_tokens", "_middle", "_new_text", "_plain",
        "_room", "_text", "_whole", "asks_usage", "beginning",
        "clean", "finished", "has_role", "hides", "inside", "lost", "output", "prompt", "reasoning_tokens",
        "shown", "text_length", "unclear",
    )  # fmt: skip

    def __init__(
        self, path: str, max_tokens: int, whole: WholeTokens, *, hides: bool = True, counts: bool = False
    ) -> None:
        self._max_tokens = max_tokens
        self._counts = counts
        self._text = _CONTENT if path == CHAT_PATH else _TEXT
        self._plain = _PLAIN_CHAT if path == CHAT_PATH else _PLAIN_COMPLETION
        self._head = self._middle = self._end = self._hidden_end = b"\n"
        """What `note_token` expects before the text, between text and id, and behind the id."""
        self._compared = 0
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
        """Note an event with one token and its text, as nearly all are, as `note` does; None for any other event.

        The events of a stream are equal but for text and id. They are compared with one that `note` has had.
        """
        if not (event.startswith(self._head) and event.endswith(self._end)):
            return None
        begin, middle, output = len(self._head), self._middle, self.output
        at = event.find(b'"', begin)
        if at == begin or not self.clean == len(output) < self._room or self.inside is not None:
            return None
        if not event.startswith(middle, at):  # a quote within the text, or more than text
            at = event.rfind(middle)
            if at < 0 or b'"tool_calls"' in event:
                return None
        at += len(middle)
        try:
            token = int(event[at : -len(self._end)])
            output.append(token)
        except (ValueError, OverflowError):
            return None
        self._whole.learn(token)
        self.clean += 1
        return event[: at - 1] + self._hidden_end if self.hides else event

    def _compare_with(self, event: bytes) -> None:
        """Let `note_token` take events that are like this one, if it has one token with text."""
        found = None if self.finished or b'"tool_calls"' in event else self._plain.fullmatch(event)
        if found is not None:
            self._head, self._middle, self._end = found.groups()
            self._hidden_end = _NULL + self._end[1:]

    def note(self, event: bytes) -> bytes:
        """Note an event, and return it as the client gets it: without ids, if it did not ask for them."""
        found = IDS.search(event)
        if found is None:
            return self._without_ids(event)
        before = len(self.output)
        if self.lost is None:
            self._keep(found[2])
        shown = self._without_prompt(event)
        if shown is not event:  # a completion's first event has both
            event, found = shown, IDS.search(shown)
        self._seen(event, len(self.output) - before)
        if len(self.output) > self._compared:  # ever more rarely, because some streams have no two events alike
            self._compared = 2 * len(self.output)
            self._compare_with(event)
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
        event = self._without_prompt(event)
        self._seen(event, 0)
        return event

    def _without_prompt(self, event: bytes) -> bytes:
        """Keep the ids of the prompt, which come once, with the first event."""
        found = _PROMPT_IDS.search(event)
        begin = 0 if found is None else found.end()
        end = event.find(b"]", begin) + 1 if begin else 0
        if not end:
            return event
        hidden = b"%b%b%b" % (event[:begin], _NULL, event[end:])
        if self.prompt is None and self.lost is None:
            self.beginning = b"data: %b\n\n" % msgspec.json.encode(shared_members(hidden))
            try:
                self.prompt = array("I", _ID_LIST.decode(event[begin:end]))
            except (ValueError, OverflowError, msgspec.DecodeError):
                self.lose(Ineligible.NO_IDS)
            if self.prompt is not None and len(self.prompt) > self._max_tokens:
                self.lose(Ineligible.LENGTH)
            elif self.prompt is not None and not self._counts:
                self._room = self._max_tokens - len(self.prompt)
        return hidden if self.hides else event

    def lose(self, why: Ineligible) -> None:
        self.lost = self.lost or why
        self.prompt, self.output, self.clean, self._room = None, array("I"), 0, 0


def _replaced(event: bytes, found: re.Match[bytes]) -> bytes:
    """Return the event with null in place of a list, as vLLM writes it where ids were not asked for."""
    return b"%b%b%b" % (event[: found.start(1)], _NULL, event[found.end(1) :])
