"""Test a tokenizer's segment boundaries on a corpus of its own added tokens. If one boundary is wrong, none is used.

The memo builds on two properties of a boundary. First, the ids of the text before it and of the text after it, joined,
are the ids of the whole. Second, a count of the added tokens in the ids of the whole leads to the same boundary.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import product
from random import Random

from backends.vllm.render import ChatRenderer
from backends.vllm.tokenizer import SpecialToken
from backends.vllm.unrenderable import Unrenderable
from router.tokenization.local.segmenter import Segmenter

MAX_TRIED_TOKENS = 12
"""Added tokens to test if a tokenizer has hundreds (the rest are placeholders of the same kind)."""
MIXED_TEXTS = 150
"""Random texts of tokens, their neighbours and look-alikes. All texts together take about a tenth of a second."""

_FRAGMENTS = (
    "",
    "word",
    " word",
    "word ",
    "  two  spaces  ",
    "\n",
    "\n\n",
    "\nline\n",
    "\t tab",
    "\r\n",
    "don't stop. 3.14159, 2024!",
    "naïve café",
    "日本語のテキスト",
    "\u3000wide\u00a0",
    "🙂👩\u200d👩\u200d👧",
    "e\u0301 Å ﬁ",
    "\u0301\u0300",
    "\x00\x7f",
    "_a_b",
    "<|",
    "def f(x):\n    return x\n",
)


def segmentation_error(renderer: ChatRenderer, segmenter: Segmenter) -> str | None:
    """Return the first wrong boundary of the corpus, in words; None if all are right."""
    if not segmenter.enabled:
        return "no added token that is looked for in raw text"
    tried = _tried(renderer.special)
    try:
        plain = (_wrong_boundary(renderer, segmenter, text, must_split=True) for text in _orderly(tried))
        mixed = (_wrong_boundary(renderer, segmenter, text, must_split=False) for text in _mixed(tried))
        return next((wrong for tries in (plain, mixed) for wrong in tries if wrong), None)
    except Unrenderable as error:
        return error.reason


def _wrong_boundary(renderer: ChatRenderer, segmenter: Segmenter, text: str, *, must_split: bool) -> str | None:
    """Return the first wrong boundary of `text`, in words.

    A text whose ids cannot be split is tokenised whole, which is right but slow. With `must_split` that is an error.
    """
    data = text.encode()
    whole = renderer.encode(text, False)
    segments = segmenter.segments(data, least_bytes=1)
    parts = segmenter.split_ids(whole, segments, 0)
    if parts is None:
        return f"the added tokens of {text[-40:]!r} are not all found again" if must_split else None
    place = 0
    for first, start in enumerate(segments.starts[1:], 1):
        place += len(parts[first - 1])
        before, after = data[:start].decode(), data[start:].decode()
        rest = renderer.encode(after, False)
        if renderer.encode(before, False) != whole[:place] or rest != whole[place:]:
            return f"cut before {after[:24]!r} changes tokens"
        if segmenter.split_ids(rest, segments, first) != parts[first:]:
            return f"the added tokens of {after[-40:]!r} are not all found again"
    return None


def _orderly(tried: list[str]) -> Iterator[str]:
    """Yield texts with every tested token before and after every fragment, and next to itself and its neighbour."""
    for index, token in enumerate(tried):
        after = tried[(index + 1) % len(tried)]
        for fragment in _FRAGMENTS:
            yield f"lead{fragment}{token}{fragment}{after}{fragment}{token}"
        yield f"x{token}y{token}{token} {token}{after}\n{after}"


def _mixed(tried: list[str]) -> Iterator[str]:
    """Yield texts of adjacent tokens, with parts of them and possible results of normalisation between them."""
    random = Random(0)
    for left, right in product(tried[:MAX_TRIED_TOKENS], repeat=2):
        yield f"a{left}{right}b {left} {right}{left[:-1]}{right}{left}{right[1:]}"
    pieces = [*tried * 3, *_FRAGMENTS, *(alike for token in tried for alike in _alike(token))]
    for _ in range(MIXED_TEXTS):
        yield "".join(random.choices(pieces, k=12))


def _alike(token: str) -> tuple[str, ...]:
    wide = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in token)
    return token[:-1], token[1:], token.upper(), token.lower(), wide, unicodedata.normalize("NFD", token)


def _tried(special: Sequence[SpecialToken]) -> list[str]:
    odd = [t.text for t in special if t.lstrip or t.rstrip or t.single_word or t.normalized or not t.special]
    known = frozenset(odd)
    plain = [t.text for t in special if t.text not in known]
    step = max(1, len(plain) // MAX_TRIED_TOKENS)
    return [*plain[::step][:MAX_TRIED_TOKENS], *odd[: 2 * MAX_TRIED_TOKENS]]
