"""The tokens that an endless cache would hold: an upper bound on the prefill that a router can save on a plan."""

from __future__ import annotations

from loadtest.workload.text import Piece, Text

_Tail = tuple[tuple[Piece, ...], int]
"""The pieces of one text, and the index of its first piece that no other text is known to share."""


class _Place:
    """A point in the tree of texts. `further` maps the id of the next piece to the edge or tail behind it."""

    __slots__ = ("further",)

    def __init__(self) -> None:
        self.further: dict[int, _Edge | _Tail] = {}


class _Edge:
    """A piece that follows a place. `tokens` is its longest use, `after` maps a length to the place behind it."""

    __slots__ = ("after", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.after: dict[int, _Place] = {}

    def stop(self, tokens: int) -> _Place:
        """Return the place behind the first `tokens` tokens of the piece, and create it if necessary."""
        self.tokens = max(self.tokens, tokens)
        place = self.after.get(tokens)
        if place is None:
            place = self.after[tokens] = _Place()
        return place


class SeenTexts:
    """All texts seen so far, as a tree of their pieces. Memory and time grow with shared pieces, not with tokens."""

    def __init__(self) -> None:
        self._root = _Place()

    def shared_tokens(self, text: Text) -> int:
        """Return the length of the longest prefix of `text` that a seen text has, in tokens."""
        place, shared = self._root, 0
        for index, (id_, tokens) in enumerate(text.pieces):
            edge = place.further.get(id_)
            if edge is None:
                return shared
            if isinstance(edge, tuple):
                return shared + _common(text.pieces[index:], edge[0][edge[1] :])
            shared += min(tokens, edge.tokens)
            following = edge.after.get(tokens)
            if following is None:
                return shared
            place = following
        return shared

    def add(self, text: Text) -> None:
        place = self._root
        for index, (id_, tokens) in enumerate(text.pieces):
            edge = _edge(place, id_)
            if edge is None:
                place.further[id_] = (text.pieces, index)
                return
            place = edge.stop(tokens)


def _common(pieces: tuple[Piece, ...], others: tuple[Piece, ...]) -> int:
    shared = 0
    for (id_, tokens), (other_id, other_tokens) in zip(pieces, others, strict=False):
        if id_ != other_id:
            break
        shared += min(tokens, other_tokens)
        if tokens != other_tokens:
            break
    return shared


def _edge(place: _Place, id_: int) -> _Edge | None:
    """Return the edge after `place` with this id. A tail that is met again first becomes an edge and a shorter tail."""
    found = place.further.get(id_)
    if not isinstance(found, tuple):
        return found
    pieces, index = found
    edge = place.further[id_] = _Edge()
    behind = edge.stop(pieces[index][1])
    if index + 1 < len(pieces):
        behind.further[pieces[index + 1][0]] = (pieces, index + 1)
    return edge
