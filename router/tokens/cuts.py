"""Where a text may be cut so that the tokens of its parts, joined, are the tokens of the whole.

Tokenizers split text at added tokens before anything else happens to it, so the start of an added token is such a
place, as long as the token is found in the raw text (not in the normalised one) and whatever its neighbours are.
Whether that holds for a given tokenizer is not believed but tried: see `router.tokens.proof`.
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from backends.vllm.tokenizer import SpecialToken

MIN_UNIT_BYTES = 64
"""Cuts closer than this to the previous one are passed over: a memo entry costs more than so few tokens."""
GROWTH_SHIFT = 9
"""That distance grows by 1/512 of the place in the text, so that even a text made of added tokens only has a few
thousand units. It depends on the text before a cut alone, so a longer text is cut at the same places."""

# White_Space of Unicode, which is what the tokenizers' lstrip takes away.
_WHITESPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


@dataclass(frozen=True, slots=True)
class Cuts:
    """Units of one text. `starts` are byte offsets, the first one 0, the units reach to the next start or the end.

    `ordinals` says how many added tokens lie before each start, `tokens_found` how many there are in all.
    """

    starts: list[int]
    ordinals: list[int]
    tokens_found: int


class Cutter:
    """Finds the cuts of one tokenizer; without usable added tokens (`enabled` False) a text is one unit.

    `ambiguous` are ids that the tokenizer also gives to ordinary text (the unknown token): no cut is made there.
    """

    def __init__(
        self, special: Iterable[SpecialToken], *, normalizes: bool, ambiguous: Collection[int] = frozenset()
    ) -> None:
        usable = [t for t in special if not t.single_word and not (t.normalized and normalizes)]
        self._ids = frozenset(token.id for token in usable if token.id not in ambiguous)
        self._passed_over = frozenset(token.text.encode() for token in usable if token.id in ambiguous)
        self.enabled = bool(self._ids)
        self._lstrip = frozenset(token.text.encode() for token in usable if token.lstrip)
        longest_first = sorted({token.text.encode() for token in usable}, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first)))

    def disable(self) -> None:
        """Treat every text as one unit from now on."""
        self.enabled = False

    def cuts(self, data: bytes) -> Cuts:
        """The units of a text, given as UTF-8."""
        starts, ordinals = [0], [0]
        if not self.enabled:
            return Cuts(starts, ordinals, 0)
        found, previous_end = 0, 0
        for match in self._pattern.finditer(data):
            if self._passed_over and match[0] in self._passed_over:
                previous_end = match.end()
                continue
            start = match.start()
            if self._lstrip and match[0] in self._lstrip:
                start = previous_end + len(data[previous_end:start].decode().rstrip(_WHITESPACE).encode())
            if start - starts[-1] >= MIN_UNIT_BYTES + (start >> GROWTH_SHIFT):
                starts.append(start)
                ordinals.append(found)
            found += 1
            previous_end = match.end()
        return Cuts(starts, ordinals, found)

    def split_ids(self, ids: Sequence[int], cuts: Cuts, first: int) -> list[array[int]] | None:
        """Ids of the text from unit `first` on, per unit; None when the added tokens in them do not add up."""
        packed = array("I", ids)
        if first == len(cuts.starts) - 1:
            return [packed]
        known = self._ids
        places = [place for place, token_id in enumerate(ids) if token_id in known]
        base = cuts.ordinals[first]
        if len(places) != cuts.tokens_found - base:
            return None
        edges = [0, *(places[ordinal - base] for ordinal in cuts.ordinals[first + 1 :]), len(packed)]
        return [packed[start:end] for start, end in itertools.pairwise(edges)]
