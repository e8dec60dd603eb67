"""Which tokens of a model are whole characters, learned from its streams."""

from __future__ import annotations

from typing import Final

_MOST_IDS: Final = 1_048_576


class WholeTokens:
    """The ids of tokens that are no part of a character: the text ends between two characters after them.

    A worker holds incomplete characters back. So a token that came alone, directly after text, and brought text, is
    whole. An event with several tokens can end with the beginning of a character, and has text all the same: vLLM joins
    the outputs of several steps where its server is late, and with speculative decoding.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known = bytearray()

    def learn(self, token: int) -> None:
        known = self._known
        if token >= len(known):
            if token >= _MOST_IDS:
                return
            known.extend(bytes(min(_MOST_IDS, 2 * token + 1_024) - len(known)))
        known[token] = 1

    def __contains__(self, token: int) -> bool:
        return token < len(self._known) and self._known[token] == 1
