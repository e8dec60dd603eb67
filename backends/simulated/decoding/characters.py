"""Characters of several tokens each, which a model writes piece by piece."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

CHARACTERS = "🚀🎉🙂🧭河流漢語日本"
_LONGEST = 4


class Characters:
    """The tokens of `CHARACTERS`, as far as the tokenizer splits them and reads them back alike behind any word."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        pieces = filter(None, (_pieces(tokenizer, character) for character in CHARACTERS))
        following: dict[tuple[int, ...], set[int]] = {}
        for ids in pieces:
            for length in range(len(ids)):
                following.setdefault(ids[:length], set()).add(ids[length])
        self._following = {begun: sorted(ids) for begun, ids in following.items()}

    def __bool__(self) -> bool:
        return bool(self._following)

    def first(self, choice: int) -> int:
        return self._chosen((), choice)

    def rest(self, before: Sequence[int], choice: int) -> int | None:
        """Return the next token of the character that the ids `before` end in; None if they end in none."""
        for length in range(min(_LONGEST - 1, len(before)), 0, -1):
            begun = tuple(before[len(before) - length :])
            if begun in self._following:
                return self._chosen(begun, choice)
        return None

    def _chosen(self, begun: tuple[int, ...], choice: int) -> int:
        ids = self._following[begun]
        return ids[choice % len(ids)]


def _pieces(tokenizer: Tokenizer, character: str) -> tuple[int, ...] | None:
    lead = tokenizer.encode("the", add_special_tokens=False).ids
    tail = tokenizer.encode("the the", add_special_tokens=False).ids[len(lead) :]
    ids = tokenizer.encode(f"the{character} the", add_special_tokens=False).ids
    pieces = tuple(ids[len(lead) : len(ids) - len(tail)])
    stable = ids[: len(lead)] == lead and ids[len(ids) - len(tail) :] == tail
    return pieces if stable and 1 < len(pieces) <= _LONGEST else None
