"""Choose the next token: a word that the tokenizer reads back as itself, the end, or a token that a grammar allows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

from backends.clock.batches import KnownRequest, allowed_tokens
from backends.simulated.decoding.sampler import TokenSampler
from backends.simulated.vocabulary import Vocabulary

# Random JSON would hardly ever end. Under a grammar, half of the draws close an open bracket or string, if allowed.
_CLOSING = frozenset('"]},')
_CLOSE_PROBABILITY = 0.5


class NoTokenizer(ValueError):
    """The model folder has no tokenizer.json; the message gives the fix."""


class Answers:
    """Draw tokens by seed, or, at temperature 0 and for requests with a seed, by nothing but the ids before them.

    A token of `stop_ids` ends an answer. It is drawn with `stop_probability` after each token and, under a grammar, as
    soon as the grammar allows it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        seed: int,
        stop_ids: Sequence[int],
        stop_probability: float,
        character_share: float = 0.0,
    ) -> None:
        self._sampler = TokenSampler(
            Vocabulary(tokenizer, seed),
            seed,
            eos_id=stop_ids[0] if stop_ids else None,
            stop_probability=stop_probability,
            character_share=character_share,
        )
        self._random = Random(f"stops {seed}").random
        self._stop_ids = tuple(stop_ids)
        self._stop_probability = stop_probability if self._stop_ids else 0.0
        texts = tokenizer.decode_batch([[id_] for id_ in range(tokenizer.get_vocab_size())], skip_special_tokens=False)
        self._blank = frozenset(id_ for id_, text in enumerate(texts) if not text.strip())
        self._closing = frozenset(id_ for id_, text in enumerate(texts) if text in _CLOSING)

    def draw(self, known: KnownRequest, bitmask_row: Sequence[int] | None = None) -> int:
        token = self._free(known) if bitmask_row is None else self._constrained(known, bitmask_row)
        known.add(token)
        return token

    def _free(self, known: KnownRequest) -> int:
        tokens = (*known.before, known.last_token)
        if known.draws is not None:
            return self._sampler.seeded(tokens, known.draws.draw(), ends=True)
        if self._stop_probability and self._random() < self._stop_probability:
            return self._stop_ids[0]
        return self._sampler.random(tokens, first=not known.answered)

    def _constrained(self, known: KnownRequest, bitmask_row: Sequence[int]) -> int:
        allowed = allowed_tokens(bitmask_row)
        for wanted in (self._stop_ids, self._closing if self._random() < _CLOSE_PROBABILITY else ()):
            found = [token for token in allowed if token in wanted]
            if found:
                return found[0]
        allowed = [token for token in allowed if token not in self._blank] or allowed
        return allowed[int(self._random() * len(allowed))] if allowed else self._free(known)


def read_tokenizer(folder: str) -> Tokenizer:
    """Return the tokenizer of a model folder.

    Raises:
        NoTokenizer: it has no tokenizer.json.
    """
    path = Path(folder) / "tokenizer.json"
    if not path.is_file():
        raise NoTokenizer(
            f"{folder} is not a local folder with a tokenizer.json; the clock needs one to answer with words. "
            "Serve a folder that holds config.json, tokenizer.json and tokenizer_config.json (weights are not needed)"
        )
    return Tokenizer.from_file(str(path))
