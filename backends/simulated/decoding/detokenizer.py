"""Tokens to text as vLLM's incremental detokeniser and its stop strings do it.

A character of several tokens appears with its last token. vLLM primes the decoding with the prompt. If the prompt ends
inside a character, it has no clean prefix to compare with, and the first complete character comes out as the text of
the whole prompt and answer: a fault that is modelled here, because a client of two workers must never meet it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backends.simulated.vocabulary import Vocabulary

_INCOMPLETE = "\ufffd"
_LONGEST_CHARACTER = 4


class Detokenizer:
    def __init__(self, vocabulary: Vocabulary, prompt_ids: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self._held: list[int] = []
        """Tokens without text so far; with the whole prompt before them if that ends inside a character."""
        self._leaks = False
        if prompt_ids and not vocabulary.is_word(prompt_ids[-1]):
            self._leaks = vocabulary.decode(prompt_ids[-_LONGEST_CHARACTER:]).endswith(_INCOMPLETE)
            self._held = list(prompt_ids) if self._leaks else []

    def next(self, token_id: int) -> str:
        """Return the text that `token_id` completes; "" if it completes none."""
        if not self._held and self._vocabulary.is_word(token_id):
            return self._vocabulary.text(token_id)
        self._held.append(token_id)
        text = self._vocabulary.decode(self._held) if self._leaks else self._vocabulary.decode_after_word(self._held)
        if not text or text.endswith(_INCOMPLETE):
            return ""
        self._held = []
        self._leaks = False
        return text


@dataclass(frozen=True, slots=True)
class StopStrings:
    """Strings that end an answer, not before it has `min_tokens`. `included`: the string stays in the text."""

    strings: tuple[str, ...]
    included: bool = False
    min_tokens: int = 0

    @property
    def held_chars(self) -> int:
        """Characters at the end of the text that may be the start of a stop string."""
        return 0 if self.included else max(map(len, self.strings)) - 1

    def found(self, text: str, new_chars: int) -> tuple[str, int] | None:
        """Return the string that ends first, and the length of the text before it (or after it, if included).

        Only matches that end within the last `new_chars` characters count.
        """
        first = len(text) - new_chars
        places = [(text.find(each, max(0, first - len(each) + 1)), each) for each in self.strings]
        ends = [(start + len(each), start, each) for start, each in places if start >= 0]
        if not ends:
            return None
        end, start, string = min(ends, key=lambda found: found[0])
        return string, end if self.included else start


class AnswerText:
    """The text of one answer, and how much of it a client may have.

    `stop_string` is set once one was found; the answer must end then.
    """

    def __init__(self, detokenizer: Detokenizer, stops: StopStrings | None) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._text = ""
        """The whole text, if stop strings are searched in it."""
        self.parts: list[str] = []
        """The text that clients may have, in order."""
        self._shown_chars = 0
        self.stop_string: str | None = None

    def take(self, token_id: int, tokens: int) -> str:
        """Add the answer's token number `tokens`, and return the text that a client gets with it."""
        text = self._detokenizer.next(token_id)
        stops = self._stops
        if stops is None:
            self.parts.append(text)
            return text
        self._text += text
        if text and tokens > stops.min_tokens and (found := stops.found(self._text, len(text))) is not None:
            self.stop_string, length = found
            self._text = self._text[:length]
            return self.flush()
        return self._release(len(self._text) - stops.held_chars)

    def flush(self) -> str:
        """Return the text that was held back, at the end of an answer."""
        return self._release(len(self._text))

    def _release(self, chars: int) -> str:
        if chars <= self._shown_chars:
            return ""
        text = self._text[self._shown_chars : chars]
        self._shown_chars = chars
        self.parts.append(text)
        return text
