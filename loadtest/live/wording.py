"""Turn a plan's pieces of text into words: token ids of the model that the workers serve."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

from loadtest.workload.text import Piece, Text

_WORD = re.compile(r" [a-z]{2,12}")
_FEWEST = 100
PIECES_KEPT = 2_048


class NoWords(Exception):
    """The tokenizer has too few words to write prompts with."""


class Wording:
    """Words for the pieces of a plan. Pieces with equal ids have equal words up to the length of the shorter one.

    Each token is a whole word after a space. A worker decodes such text and encodes it again to the same ids.

    Raises:
        NoWords: the model folder's tokenizer has too few whole words.
    """

    def __init__(self, model_dir: Path) -> None:
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        self._words = _whole_words(self._tokenizer)
        if len(self._words) < _FEWEST:
            raise NoWords(f"{model_dir} has a tokenizer with {len(self._words)} whole words; serve another model")
        self._packed = lru_cache(PIECES_KEPT)(self._pack)

    def ids(self, piece: Piece) -> list[int]:
        id_, tokens = piece
        return Random(id_).choices(self._words, k=tokens)

    def prompt(self, text: Text, answers: Mapping[int, Sequence[int]]) -> bytes:
        """Return all ids of a prompt as the inside of a JSON array.

        `answers` has the ids of pieces that the model itself has written.
        """
        return b",".join(
            [
                _json(answers[piece[0]][: piece[1]]) if piece[0] in answers else self._packed(piece)
                for piece in text.pieces
            ]
        )

    def read(self, answer: str) -> list[int]:
        """Return the ids of an answer's text, as a later prompt quotes it."""
        ids: list[int] = self._tokenizer.encode(answer, add_special_tokens=False).ids
        return ids

    def _pack(self, piece: Piece) -> bytes:
        return _json(self.ids(piece))


def _whole_words(tokenizer: Tokenizer) -> list[int]:
    ids = sorted(tokenizer.get_vocab(with_added_tokens=False).values())
    texts = tokenizer.decode_batch([[id_] for id_ in ids], skip_special_tokens=False)
    return [id_ for id_, text in zip(ids, texts, strict=True) if _WORD.fullmatch(text)]


def _json(ids: Sequence[int]) -> bytes:
    return b",".join([b"%d" % id_ for id_ in ids])
