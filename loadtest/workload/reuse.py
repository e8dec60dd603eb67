"""What an endless cache would have held: the most that any router can save on a plan."""

from __future__ import annotations

from loadtest.workload.text import Piece, Text


class _Place:
    """A point in the tree of texts seen; `further` leads on by the id of the piece that follows."""

    __slots__ = ("further",)

    def __init__(self) -> None:
        self.further: dict[int, _Edge] = {}


class _Edge:
    """One text read on from a place: how far at most, and what follows where somebody stopped reading it."""

    __slots__ = ("after", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.after: dict[int, _Place] = {}


class SeenTexts:
    """Every text shown so far, as a tree of their pieces: memory and time go by pieces, not by tokens."""

    def __init__(self) -> None:
        self._root = _Place()

    def shared_tokens(self, text: Text) -> int:
        """Tokens that `text` shares, from its beginning on, with the text seen that is most like it."""
        place, shared = self._root, 0
        for id_, tokens in text.pieces:
            if not tokens:
                continue
            edge = place.further.get(id_)
            if edge is None:
                return shared
            shared += min(tokens, edge.tokens)
            following = edge.after.get(tokens)
            if following is None:
                return shared
            place = following
        return shared

    def add(self, text: Text) -> None:
        """From here on `text` has been seen."""
        place = self._root
        for id_, tokens in text.pieces:
            if tokens:
                place = _step(place, (id_, tokens))


def _step(place: _Place, piece: Piece) -> _Place:
    id_, tokens = piece
    edge = place.further.get(id_)
    if edge is None:
        edge = place.further[id_] = _Edge()
    edge.tokens = max(edge.tokens, tokens)
    following = edge.after.get(tokens)
    if following is None:
        following = edge.after[tokens] = _Place()
    return following
