"""Turn a plan's pieces of text into words, each one token of the model that the workers serve."""

from __future__ import annotations

import re
from collections.abc import Mapping
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

    Another `salt` writes other words for the same pieces; equal arguments write equal words in every process.

    Each token is a whole word after a space, so a worker reads the text as the tokens that it stands for.

    Raises:
        NoWords: the model folder's tokenizer has too few whole words.
    """

    def __init__(self, model_dir: Path, salt: str = "") -> None:
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        ids = sorted(self._tokenizer.get_vocab(with_added_tokens=False).values())
        texts = self._tokenizer.decode_batch([[id_] for id_ in ids], skip_special_tokens=False)
        self._words = [text for text in texts if _WORD.fullmatch(text)]
        if len(self._words) < _FEWEST:
            raise NoWords(f"{model_dir} has a tokenizer with {len(self._words)} whole words; serve another model")
        self._salt = salt
        self.piece = lru_cache(PIECES_KEPT)(self._worded)

    def prompt(self, text: Text, answers: Mapping[int, str]) -> str:
        """Return the words of a prompt. `answers` has the text of pieces that the model itself has written."""
        return "".join(
            [
                self.cut(answers[id_], tokens) if id_ in answers else self.piece((id_, tokens))
                for id_, tokens in text.pieces
            ]
        )

    def cut(self, answer: str, tokens: int) -> str:
        offsets = self._offsets(answer)
        return answer if len(offsets) <= tokens else answer[: offsets[tokens - 1][1]]

    def length(self, answer: str) -> int:
        return len(self._offsets(answer))

    def _offsets(self, text: str) -> list[tuple[int, int]]:
        offsets: list[tuple[int, int]] = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return offsets

    def _worded(self, piece: Piece) -> str:
        id_, tokens = piece
        seed = f"{self._salt}: {id_}" if self._salt else id_
        return "".join(Random(seed).choices(self._words, k=tokens))
