"""The tokens that an endless cache would hold: an upper bound on what any router can save on a plan."""

from __future__ import annotations

from dataclasses import dataclass

from loadtest.workload.text import Piece, Text

_Tail = tuple[tuple[Piece, ...], int]
"""The pieces of one text, and the index of the first of them that no other text is known to share."""


class _Place:
    """A point in the tree of texts seen; `further` leads on by the id of the piece that follows."""

    __slots__ = ("further",)

    def __init__(self) -> None:
        self.further: dict[int, _Edge | _Tail] = {}


class _Edge:
    """One text read on from a place: how far at most, and what follows where somebody stopped reading it."""

    __slots__ = ("after", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.after: dict[int, _Place] = {}

    def stop(self, tokens: int) -> _Place:
        """The place where `tokens` of it have been read; it exists from here on."""
        self.tokens = max(self.tokens, tokens)
        place = self.after.get(tokens)
        if place is None:
            place = self.after[tokens] = _Place()
        return place


@dataclass(frozen=True, slots=True)
class Mark:
    """Where in the tree a text ends that has been seen, so that its continuation need not be walked from the root."""

    text: Text
    place: _Place


class SeenTexts:
    """Every text shown so far, as a tree of their pieces: memory and time go by shared pieces, not by tokens.

    `since` marks a text that the one given is thought to begin with; where it does not, the mark is passed over.
    """

    def __init__(self) -> None:
        self._root = Mark(Text((), 0), _Place())

    def shared_tokens(self, text: Text, since: Mark | None = None) -> int:
        """Tokens that `text` shares, from its beginning on, with the text seen that is most like it."""
        begin = self._begin(text, since)
        place, shared, begun = begin.place, begin.text.tokens, len(begin.text.pieces)
        for index, (id_, tokens) in enumerate(text.pieces[begun:], begun):
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

    def add(self, text: Text, since: Mark | None = None) -> None:
        """From here on `text` has been seen."""
        begin = self._begin(text, since)
        place, begun = begin.place, len(begin.text.pieces)
        for index, (id_, tokens) in enumerate(text.pieces[begun:], begun):
            edge = _edge(place, id_)
            if edge is None:
                place.further[id_] = (text.pieces, index)
                return
            place = edge.stop(tokens)

    def mark(self, text: Text, since: Mark | None = None) -> Mark:
        """From here on `text` has been seen, and can be gone on from."""
        begin = self._begin(text, since)
        place = begin.place
        for id_, tokens in text.pieces[len(begin.text.pieces) :]:
            edge = _edge(place, id_)
            if edge is None:
                edge = place.further[id_] = _Edge()
            place = edge.stop(tokens)
        return Mark(text, place)

    def _begin(self, text: Text, since: Mark | None) -> Mark:
        if since is None or text.pieces[: len(since.text.pieces)] != since.text.pieces:
            return self._root
        return since


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
    """Return the node after `place` with this id. A tail met for the second time is unrolled by one piece."""
    found = place.further.get(id_)
    if not isinstance(found, tuple):
        return found
    pieces, index = found
    edge = place.further[id_] = _Edge()
    behind = edge.stop(pieces[index][1])
    if index + 1 < len(pieces):
        behind.further[pieces[index + 1][0]] = (pieces, index + 1)
    return edge
