"""Tries a tokenizer's cuts on a corpus made from its own added tokens: wherever one is wrong, none is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from backends.vllm.render import ChatRenderer
from backends.vllm.tokenizer import SpecialToken
from backends.vllm.unrenderable import Unrenderable
from router.tokens.cuts import Cutter

MAX_TRIED_TOKENS = 12
"""Added tokens tried where a tokenizer has hundreds (the rest are placeholders of the same kind)."""

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
    "don't stop. 3.14159, 2024!",
    "naïve café",
    "日本語のテキスト",
    "\u3000wide\u00a0",
    "🙂👩\u200d👩\u200d👧",
    "e\u0301 Å ﬁ",
    "_a_b",
    "<|",
    "def f(x):\n    return x\n",
)


def prove(renderer: ChatRenderer, cutter: Cutter) -> str | None:
    """None when every cut of the corpus holds, else the first that does not, in words."""
    if not cutter.enabled:
        return "no added token that is looked for in raw text"
    try:
        return next(
            (wrong for text in _corpus(renderer.special) if (wrong := _wrong_cut(renderer, cutter, text))), None
        )
    except Unrenderable as error:
        return error.reason


def _wrong_cut(renderer: ChatRenderer, cutter: Cutter, text: str) -> str | None:
    whole = renderer.encode(text, False)
    data = text.encode()
    cuts = cutter.cuts(data)
    if cutter.split_ids(whole, cuts, 0) is None:
        return f"the added tokens of {text[-40:]!r} are not all found again"
    for first, start in enumerate(cuts.starts[1:], 1):
        before, after = data[:start].decode(), data[start:].decode()
        if renderer.encode(before, False) + renderer.encode(after, False) != whole:
            return f"cut before {after[:24]!r} changes tokens"
        if cutter.split_ids(renderer.encode(after, False), cuts, first) is None:
            return f"the added tokens of {after[-40:]!r} are not all found again"
    return None


def _corpus(special: Sequence[SpecialToken]) -> Iterator[str]:
    """Texts with every tried token before and after every fragment, with its neighbours in the table, and doubled.

    Fillers push the cuts apart, since cuts close to each other are passed over.
    """
    tried = _tried(special)
    filler = "lorem ipsum dolor sit amet " * 3
    for index, token in enumerate(tried):
        after = tried[(index + 1) % len(tried)]
        for fragment in _FRAGMENTS:
            yield f"{filler}{fragment}{token}{fragment}{filler}{fragment}{after}{fragment}{token}"
        yield f"{token}{token}{filler}{token}{after}{filler}{after}"
        yield f"{filler}x{token}y{filler} {token} {filler}"


def _tried(special: Sequence[SpecialToken]) -> list[str]:
    """All tokens with a habit of their own, and a spread of the rest."""
    odd = [t.text for t in special if t.lstrip or t.rstrip or t.single_word or t.normalized or not t.special]
    known = frozenset(odd)
    plain = [t.text for t in special if t.text not in known]
    step = max(1, len(plain) // MAX_TRIED_TOKENS)
    return odd[: 2 * MAX_TRIED_TOKENS] + plain[::step][:MAX_TRIED_TOKENS]
