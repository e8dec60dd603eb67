"""Requests of clients, drawn before the run: sessions of calls, with times, lengths and shared text.

Every rule receives the same requests for the same seed. Answers are part of the plan, so a later turn's prompt does not
depend on the worker that served the earlier turn. Only its time does, as it follows the end of the earlier answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from loadtest.workload.text import Piece, Text, extend


@dataclass(frozen=True, slots=True)
class Call:
    """One request: the prompt, and the piece that stands for the answer, which a later prompt quotes.

    A client sends the call `pause_s` after the end of the previous one. The first call follows the session's start by
    its pause. `kind` splits measures ("chat", "upload", ...). `max_tokens` is the limit that the client sends, None if
    it sends none; it is at least the answer's length.
    """

    prompt: Text
    answer: Piece
    pause_s: float = 0.0
    kind: str = "chat"
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """Calls of one client, one after the other, from `start_s` after the start of the run."""

    id: str
    start_s: float
    calls: tuple[Call, ...]

    @property
    def last_s(self) -> float:
        """The time at which its last call is sent if answers take no time."""
        return self.start_s + sum(call.pause_s for call in self.calls)


@dataclass(frozen=True, slots=True)
class Plan:
    """Sessions by start time, all of which start within `duration_s`.

    `block_tokens` is the source's own block size; smaller blocks find no more reuse in it.
    """

    name: str
    sessions: tuple[Session, ...]
    duration_s: float
    block_tokens: int

    @classmethod
    def of(cls, name: str, sessions: Iterable[Session], duration_s: float, block_tokens: int = 16) -> Plan:
        """Return a plan of these sessions in order of their start."""
        return cls(name, tuple(sorted(sessions, key=lambda session: session.start_s)), duration_s, block_tokens)

    @property
    def calls(self) -> int:
        return sum(len(session.calls) for session in self.sessions)


def within(session: Session, length_s: float) -> Session | None:
    """Return a session's calls that fall into [0, length_s) if answers take no time; None if there are none.

    Real answers only make calls later, so the calls cut at the end would never have been sent.
    """
    at_s, start_s = session.start_s, 0.0
    kept: list[Call] = []
    for call in session.calls:
        at_s += call.pause_s
        if at_s >= length_s:
            break
        if at_s >= 0.0:
            start_s = start_s if kept else at_s
            kept.append(call if kept else replace(call, pause_s=0.0))
    return replace(session, start_s=start_s, calls=tuple(kept)) if kept else None


def reusable_by_call(sessions: Iterable[Session], block_tokens: int) -> Iterator[tuple[Session, int, int]]:
    """Yield (session, number of its call, prompt tokens in full blocks that an endless cache holds) for every call.

    Calls come in order of arrival, as if every call were answered at once. All tokens of an answer but the last count,
    because an engine has no keys and values of the token that it sampled last.
    """
    seen: set[int] = set()
    said: dict[str, tuple[Text, list[int]]] = {}
    timed: list[tuple[float, Session, int]] = []
    for session in sessions:
        at_s = session.start_s
        for number, call in enumerate(session.calls):
            at_s += call.pause_s
            timed.append((at_s, session, number))
    for _, session, number in sorted(timed, key=lambda entry: entry[0]):
        call = session.calls[number]
        before, known = said.get(session.id, (Text((), 0), []))
        goes_on = call.prompt.pieces[: len(before.pieces)] == before.pieces
        text = call.prompt.plus(call.answer)
        links = extend(known if goes_on else [], text, block_tokens)
        said[session.id] = text, links
        within_prompt = links[: call.prompt.tokens // block_tokens]
        held = next((place for place, link in enumerate(within_prompt) if link not in seen), len(within_prompt))
        yield session, number, held * block_tokens
        seen.update(links[: (text.tokens - bool(call.answer[1])) // block_tokens])
