"""Tokenise a long text piece by piece, with the same ids as in one call.

The tokenizer takes 100 to 280 bytes of memory per byte of text while it works. A text is divided before white space
after a word. At such a place the tokens of some hundred characters on either side must be the same with and without the
division. Tokenizers look far less than that beyond the edge of a word.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from itertools import islice
from typing import TypeAlias

from backends.vllm.unrenderable import Unrenderable

PIECE_CHARS = 32_768
"""Length of a piece: about 15 ms and 5 MB of tokenizer memory, and four times as much outside Latin scripts."""
SHORT_CHARS = 2 * PIECE_CHARS
"""Texts up to this length are tokenised at once."""
MAX_WHOLE_BYTES = 262_144
"""The limit in UTF-8 for a text that cannot be divided: about 30 MB of tokenizer memory, never more than 75."""
_AROUND_CHARS = 256
_SEARCHED_CHARS = 8_192
_TRIES = 16
_WORD_END = re.compile(r"(?<=\w)(?=\s)")

Encode: TypeAlias = Callable[[str], list[int]]


def encode_in_pieces(encode: Encode, text: str) -> array[int]:
    """Return the ids of `text`. `encode` returns the ids of a text without added special tokens.

    Raises:
        Unrenderable: the text is too long to tokenise at once and cannot be divided.
    """
    ids = array("I")
    start = 0
    while len(text) - start > SHORT_CHARS:
        end = _joint(encode, text, start + PIECE_CHARS)
        if end is None:
            break
        ids.extend(encode(text[start:end]))
        start = end
    rest = text[start:]
    if len(rest) > SHORT_CHARS and len(rest.encode("utf-8", "surrogatepass")) > MAX_WHOLE_BYTES:
        raise Unrenderable("the prompt is long and cannot be tokenised piece by piece")
    ids.extend(encode(rest))
    return ids


def _joint(encode: Encode, text: str, place: int) -> int | None:
    """Return the first place from `place` on where the text can be divided; None if there is none near."""
    places = _WORD_END.finditer(text, place, min(place + _SEARCHED_CHARS, len(text)))
    for match in islice(places, _TRIES):
        joint = match.start()
        before, after = text[joint - _AROUND_CHARS : joint], text[joint : joint + _AROUND_CHARS]
        if encode(before) + encode(after) == encode(before + after):
            return joint
    return None
