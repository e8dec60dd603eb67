"""The words with which a simulated model answers.

A generated token is a whole word that the tokenizer reads back as that one token. So when the next turn sends the text
of an answer again, the text has the ids that the engine cached during decode.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from random import Random

from tokenizers import Tokenizer

_CANDIDATES = 1_024
_WORD = re.compile(r"[a-z]{2,12}")


class VocabularyError(ValueError):
    """The tokenizer has no words to answer with."""


@lru_cache(maxsize=4)
def _words(tokenizer: Tokenizer) -> tuple[dict[int, str], list[int], list[int]]:
    """Return the text of each id, and the words for the start of a line and after other text."""
    # After other text, because some decoders drop a leading space at the very start.
    anchor = tokenizer.encode("the", add_special_tokens=False).ids
    start = len(tokenizer.decode(anchor))
    ids = sorted(tokenizer.get_vocab(with_added_tokens=False).values())
    texts = tokenizer.decode_batch([[*anchor, id_] for id_ in ids], skip_special_tokens=False)
    spelled = {id_: text[start:] for id_, text in zip(ids, texts, strict=True)}
    openers = ((id_, text) for id_, text in spelled.items() if _WORD.fullmatch(text))
    followers = ((id_, text) for id_, text in spelled.items() if text[:1] == " " and _WORD.fullmatch(text[1:]))
    return spelled, _stable(tokenizer, openers, "\n"), _stable(tokenizer, followers, "the")


def _stable(tokenizer: Tokenizer, words: Iterable[tuple[int, str]], before: str) -> list[int]:
    """Return the ids of words that stay one token after other text and before a further word."""
    candidates = [word for word, _ in zip(words, range(_CANDIDATES), strict=False)]
    lead = tokenizer.encode(before, add_special_tokens=False).ids
    tail = tokenizer.encode(f"{before} the", add_special_tokens=False).ids[len(lead) :]
    encoded = tokenizer.encode_batch([f"{before}{text} the" for _, text in candidates], add_special_tokens=False)
    return [id_ for (id_, _), read in zip(candidates, encoded, strict=True) if read.ids == [*lead, id_, *tail]]


class Vocabulary:
    """Words as token ids with their text, one list each for the start of a line and after other text.

    Raises:
        VocabularyError: the tokenizer has no whole-word tokens that it reads back as themselves.
    """

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self.tokenizer = tokenizer
        self._random = Random(seed).random
        spelled, self._openers, self._followers = _words(tokenizer)
        if not self._followers:
            raise VocabularyError(
                "the tokenizer has no whole words with a space in front that it reads back as one token"
            )
        self._texts = {id_: spelled[id_] for id_ in (*self._openers, *self._followers)}
        self._anchor = tokenizer.encode("the", add_special_tokens=False).ids
        self._anchor_chars = len(tokenizer.decode(self._anchor))
        self._starts_line: dict[int, bool] = {}

    def draw(self, last_id: int, *, first: bool) -> int:
        """Draw a random next word. The `first` of an answer has no space in front if it starts a line."""
        words: Sequence[int] = self._followers
        if first and self._openers and self._at_line_start(last_id):
            words = self._openers
        return words[int(self._random() * len(words))]

    def choose(self, last_id: int, choice: int) -> int:
        """Return word number `choice` of those that fit behind `last_id`."""
        starts_line = self._openers and self._at_line_start(last_id)
        words = self._openers if starts_line else self._followers
        return words[choice % len(words)]

    def _at_line_start(self, last_id: int) -> bool:
        known = self._starts_line.get(last_id)
        if known is None:
            # Control tokens decode to an empty text.
            text = self.tokenizer.decode([last_id], skip_special_tokens=True)
            known = self._starts_line[last_id] = not text or text[-1].isspace()
        return known

    def text(self, token_id: int) -> str:
        return self._texts[token_id]

    def is_word(self, token_id: int) -> bool:
        return token_id in self._texts

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def decode_after_word(self, ids: Sequence[int]) -> str:
        """Return the text of ids that stand behind a word. Some decoders drop a leading space at the very start."""
        return self.decode([*self._anchor, *ids])[self._anchor_chars :]
