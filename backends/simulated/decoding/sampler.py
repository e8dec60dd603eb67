"""Choose the next token of an answer: at random, or as a function of the ids before it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from backends.engine.request import EngineRequestState
from backends.simulated.decoding.characters import Characters
from backends.simulated.decoding.draws import Draw, split_number
from backends.simulated.generation import Sampling
from backends.simulated.vocabulary import Vocabulary, VocabularyError


class TokenSampler:
    """Tokens of one model: words, and now and then a character of several tokens.

    A seeded answer ends with the end-of-sequence token, drawn with `stop_probability` after each token. Raises
    `VocabularyError` if characters are wanted of a tokenizer that splits none.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        seed: int,
        *,
        eos_id: int | None,
        stop_probability: float = 0.0,
        character_share: float = 0.0,
    ) -> None:
        self._vocabulary = vocabulary
        self._characters = Characters(vocabulary.tokenizer) if character_share else None
        if self._characters is not None and not self._characters:
            raise VocabularyError("the tokenizer splits no emoji and no Chinese character; set no share of characters")
        self._character_share = character_share
        self._stop_probability = stop_probability if eos_id is not None else 0.0
        self._eos_id = eos_id
        self._characters_random = Random(f"characters {seed}")

    def next(self, state: EngineRequestState, sampling: Sampling | None) -> int:
        tokens = state.tokens
        if sampling is None or sampling.draws is None:
            return self.random(tokens, first=state.output_tokens == 0)
        draws = sampling.draws
        draws.extend(tokens[draws.tokens :])
        ends = sampling.eos_id is not None and state.output_tokens >= sampling.min_tokens
        return self.seeded(tokens, draws.draw(), ends=ends)

    def random(self, tokens: Sequence[int], *, first: bool) -> int:
        """Return a random token behind `tokens`; the `first` of an answer may start a line."""
        if self._characters is not None:
            draw = split_number(self._characters_random.getrandbits(64))
            if (piece := self._character(self._characters, tokens, draw)) is not None:
                return piece
        return self._vocabulary.draw(tokens[-1], first=first)

    def seeded(self, tokens: Sequence[int], draw: Draw, *, ends: bool) -> int:
        """Return the token that `draw` chooses behind `tokens`; the end of the sequence only if it `ends`."""
        characters = self._characters
        if characters is not None and (piece := self._character(characters, tokens, draw)) is not None:
            return piece
        if ends and self._eos_id is not None and draw.stop_share < self._stop_probability:
            return self._eos_id
        return self._vocabulary.choose(tokens[-1], draw.choice)

    def _character(self, characters: Characters, tokens: Sequence[int], draw: Draw) -> int | None:
        rest = characters.rest(tokens[-4:], draw.choice)
        if rest is not None or draw.character_share >= self._character_share:
            return rest
        return characters.first(draw.choice)
