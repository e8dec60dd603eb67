"""Divide a text so that the tokens of its segments, joined, are the tokens of the whole.

Tokenizers split text at added tokens before any other step. So the start of an added token is a boundary, if the token
is found in the raw text beside any neighbours. Tokenizers look for added tokens in two passes. The first finds tokens
that are not `normalized`, in the raw text. The second finds the other tokens, in the normalised text between them.
Boundaries are at tokens of the first pass, or of the second if the first has none and no text is normalised.
`router.tokenization.local.segmentation_check` tests whether this holds for a given tokenizer.
"""

from __future__ import annotations

import itertools
import re
from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from backends.vllm.tokenizer import SpecialToken

MIN_SEGMENT_BYTES = 64
"""Minimum length of a segment, because a memo entry costs more than a shorter text."""
GROWTH_SHIFT = 9
"""The minimum grows by 1/512 of the place in the text, so even a text of added tokens only has a few thousand segments.

A boundary depends only on the text before it, so a longer text has the same boundaries.
"""

# White_Space of Unicode, which the tokenizers' lstrip removes.
_WHITESPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


@dataclass(frozen=True, slots=True)
class Segments:
    """Segments of one text. `starts` are byte offsets, the first one 0; a segment ends at the next start or the end.

    `ordinals` has the number of added tokens before each start, `tokens_found` their number in all.
    """

    starts: list[int]
    ordinals: list[int]
    tokens_found: int


class Segmenter:
    """Find the segments for one tokenizer. Without usable added tokens (`enabled` False) a text is one segment.

    `ambiguous` are ids that the tokenizer also gives to ordinary text (the unknown token): they make no boundary.
    Neither does a token that counts as a whole word only, since it depends on its neighbours. The place right after one
    is no boundary either, since it would lose a neighbour. Nor is a white space token that absorbs more white
    space.
    """

    def __init__(
        self, special: Iterable[SpecialToken], *, normalizes: bool, ambiguous: Collection[int] = frozenset()
    ) -> None:
        table = list(special)
        found = [token for token in table if not token.normalized]
        if not found and not normalizes:
            found = table
        boundary_tokens = [
            token for token in found if not token.single_word and token.id not in ambiguous and not _fades(token)
        ]
        self._ids = frozenset(token.id for token in boundary_tokens)
        self._whole_words = frozenset(token.text.encode() for token in found if token.single_word)
        self._passed_over = frozenset(token.text.encode() for token in found if token.id not in self._ids)
        self.enabled = bool(self._ids)
        self._lstrip = frozenset(token.text.encode() for token in boundary_tokens if token.lstrip)
        longest_first = sorted({token.text.encode() for token in found}, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first)))
        self._longest = len(longest_first[0]) if longest_first else 0
        self._begun = frozenset(text[:length] for text in longest_first for length in range(len(text)))

    @property
    def settles(self) -> bool:
        """Whether a boundary in a text stays one in longer texts.

        Before a token that strips white space on its left, it depends on what follows.
        """
        return self.enabled and not self._lstrip

    def disable(self) -> None:
        self.enabled = False

    def segments(self, data: bytes, least_bytes: int = MIN_SEGMENT_BYTES, before_bytes: int = 0) -> Segments:
        """Return the segments of a text in UTF-8, each but the last of at least `least_bytes`.

        `data` may be a text from a boundary on; `before_bytes` is then the length of the text before it.
        """
        starts, ordinals = [0], [0]
        if not self.enabled:
            return Segments(starts, ordinals, 0)
        found, previous_end, word_end = 0, 0, -1
        for match in self._pattern.finditer(data):
            if self._passed_over and match[0] in self._passed_over:
                previous_end = match.end()
                if match[0] in self._whole_words:
                    word_end = previous_end
                continue
            start = match.start()
            if self._lstrip and match[0] in self._lstrip:
                start = previous_end + len(data[previous_end:start].decode().rstrip(_WHITESPACE).encode())
            least = least_bytes + ((before_bytes + start) >> GROWTH_SHIFT)
            if start - starts[-1] >= least and start != word_end:
                starts.append(start)
                ordinals.append(found)
            found += 1
            previous_end = match.end()
        return Segments(starts, ordinals, found)

    def settled(self, data: bytes, segments: Segments, end: int) -> int:
        """Return the last segment that begins in any text that has the first `end` bytes of `data`.

        A token that the text may complete behind `end` may cover a boundary. Needs `settles`.
        """
        starts = segments.starts
        place = bisect_right(starts, end) - 1
        first = max(0, end - self._longest)
        while place and any(data[begin:end] in self._begun for begin in range(first, starts[place] + 1)):
            place -= 1
        return place

    def split_ids(self, ids: Sequence[int], segments: Segments, first: int) -> list[array[int]] | None:
        """Return the ids of the text from segment `first` on, per segment; None if their added tokens do not match."""
        packed = array("I", ids)
        if first == len(segments.starts) - 1:
            return [packed]
        # The n-th added token of the text is the n-th one among the ids, so it shows where a segment begins.
        known = self._ids
        places = [place for place, token_id in enumerate(ids) if token_id in known]
        base = segments.ordinals[first]
        if len(places) != segments.tokens_found - base:
            return None
        edges = [0, *(places[ordinal - base] for ordinal in segments.ordinals[first + 1 :]), len(packed)]
        return [packed[start:end] for start, end in itertools.pairwise(edges)]


def _fades(token: SpecialToken) -> bool:
    """Return whether a token before `token` may absorb all of it as white space, so that not even its id remains."""
    return token.lstrip and token.text[:1] in _WHITESPACE
