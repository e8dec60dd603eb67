"""Remember the ids of short stretches of text, so that of new text only what is rare is tokenised.

A tokenizer takes and frees memory for every word, and its vocabulary is seldom in the CPU's caches. Some tokenizers
take out added tokens, divide the rest by a pattern, and tokenise each part by itself. The patterns of `_PATTERNS` look
ahead in one place only, behind white space, and never look back. In ASCII text, none of their matches goes on

- after a visible character with a space,
- after a letter with anything but a letter or an apostrophe,
- after a digit with anything but a digit,
- after a visible character and a line feed with a letter.

So a match ends at each of these places, and what is on one side of it does not depend on the other. The ids of the text
between two of them are the same by itself as in the text.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Sequence
from typing import Any

from backends.vllm.render import ChatRenderer
from backends.vllm.tokenizer import SpecialToken

MAX_STRETCHES = 32_768
"""Stretches to remember, in about 7 MB. When there are more, the memo starts over."""
MAX_STRETCH_CHARS = 32
"""Longer ones are rare."""
MAX_STRETCH_BYTES = 128
"""Of packed ids. One id per character is the most that words have."""
MAX_UNKNOWN = 64
"""Unknown stretches of one text to tokenise by themselves, which takes up to twice as long as in the text."""
LEARNED = 32
"""Stretches to tokenise of a text with more unknown ones, which the tokenizer takes as a whole."""
MAX_TEXT_CHARS = 8_192
"""Longer texts are left to the tokenizer, which works in a thread and without the GIL."""

_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENDING, _REST = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CAPITALS, _SMALLS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_QWEN = rf"{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"
_LLAMA_3 = _QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_LLAMA_4 = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}*{_SMALLS}+{_ENDING}?|[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}+{_SMALLS}*{_ENDING}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"
)
_PATTERNS = frozenset({_GPT_2, _QWEN, _LLAMA_3, _LLAMA_4})
_STRETCH = re.compile(
    r" ?(?:[A-Za-z]++(?!')|[0-9]++)"
    r"|.+?(?:(?<=[!-~])(?= )|(?<=[A-Za-z])(?![A-Za-z'])|(?<=[0-9])(?![0-9])|(?<=[!-~]\n)(?=[A-Za-z])|\Z)",
    re.DOTALL,
)
"""Text up to the next of these places. The first line is the usual case of the second."""


class WordMemo:
    """Ids of stretches of text, packed, by their text. `separator` is an added token of which no two overlap."""

    def __init__(self, renderer: ChatRenderer, separator: SpecialToken) -> None:
        self._renderer = renderer
        self._separator = separator
        self._tokens = {token.text: array("I", [token.id]).tobytes() for token in renderer.special}
        self._known = self._tokens.copy()
        longest_first = sorted(self._tokens, key=len, reverse=True)
        self._token = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    def encode(self, text: str) -> array[int] | None:
        """Return the ids of `text`; None if the tokenizer has to do it.

        Raises:
            Unrenderable: text that is not valid Unicode.
        """
        if len(text) > MAX_TEXT_CHARS:
            return None
        stretches: list[str] = []
        for place, part in enumerate(self._token.split(text)):
            if place % 2 or not part.isascii():
                stretches.append(part)
            else:
                stretches += _STRETCH.findall(part)
        found = list(map(self._known.get, stretches))
        if None in found:
            unknown = list(dict.fromkeys(part for part, ids in zip(stretches, found, strict=True) if ids is None))
            new = self._tokenised(unknown if len(unknown) <= MAX_UNKNOWN else unknown[:LEARNED])
            if new is None or len(unknown) > MAX_UNKNOWN:
                return None
            found = [new[part] if ids is None else ids for part, ids in zip(stretches, found, strict=True)]
        ids = array("I")
        ids.frombytes(b"".join([packed for packed in found if packed is not None]))
        return ids

    def _tokenised(self, stretches: list[str]) -> dict[str, bytes] | None:
        """Tokenise stretches in one call and remember them; None if not all separators are found again."""
        ids = array("I", self._renderer.encode(self._separator.text.join(stretches), False))
        ends = [place for place, token_id in enumerate(ids) if token_id == self._separator.id]
        if len(ends) != len(stretches) - 1:
            return None
        edges = zip(stretches, [0, *(end + 1 for end in ends)], [*ends, len(ids)], strict=True)
        new = {stretch: ids[start:end].tobytes() for stretch, start, end in edges}
        if len(self._known) + len(new) > MAX_STRETCHES + len(self._tokens):
            self._known = self._tokens.copy()
        self._known.update({stretch: packed for stretch, packed in new.items() if _is_short(stretch, packed)})
        return new


def _is_short(stretch: str, packed: bytes) -> bool:
    return len(stretch) <= MAX_STRETCH_CHARS and len(packed) <= MAX_STRETCH_BYTES


def word_memo(renderer: ChatRenderer) -> WordMemo | None:
    """Return an empty memo; None for a tokenizer that may not work as the module describes."""
    if not _divides_as_known(renderer.tokenizer) or not _are_taken_out_first(renderer):
        return None
    separator = next((token for token in renderer.special if token.text[0] not in token.text[1:]), None)
    return WordMemo(renderer, separator) if separator is not None else None


def _are_taken_out_first(renderer: ChatRenderer) -> bool:
    """Return whether all added tokens are found in one pass, in raw text, and absorb nothing."""
    passes = {token.normalized for token in renderer.special}
    if len(passes) != 1 or (renderer.tokenizer.normalizer is not None and True in passes):
        return False
    return not any(token.lstrip or token.rstrip or token.single_word for token in renderer.special)


def _divides_as_known(tokenizer: Any) -> bool:
    normalizer, model = _described(tokenizer.normalizer), tokenizer.model
    if normalizer.get("type", "NFC") != "NFC" or type(model).__name__ != "BPE" or model.dropout:
        return False
    found = _described(tokenizer.pre_tokenizer)
    if found.get("type") == "Sequence":
        return _splits_by_pattern(found["pretokenizers"])
    return _is_byte_level(found, use_regex=True)


def _splits_by_pattern(steps: Sequence[dict[str, Any]]) -> bool:
    if len(steps) != 2:
        return False
    split, level = steps
    isolates = split.get("behavior") == "Isolated" and not split.get("invert")
    known = isolates and split.get("type") == "Split" and split["pattern"].get("Regex") in _PATTERNS
    return known and _is_byte_level(level, use_regex=False)


def _is_byte_level(found: dict[str, Any], *, use_regex: bool) -> bool:
    wanted = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": use_regex}
    return wanted.items() <= found.items()


def _described(part: Any) -> dict[str, Any]:
    """Return a part of a tokenizer as its file describes it; empty if there is none."""
    described: dict[str, Any] = json.loads(part.__getstate__()) if part is not None else {}
    return described
