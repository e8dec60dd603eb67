"""Requests of clients, drawn before the run, so that every router and every worker cache gets the same ones.

Answers are drawn in advance too: a later turn's prompt does not depend on the worker that served the earlier turn.
Only the times depend on the run, since a turn follows the end of the answer before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from backends.engine.engine import EngineRequest, HashedText
from loadtest.workload import plan
from loadtest.workload.text import Piece, Text, extend
from router.residency.prompt import Prompt, PromptSource


class Asked(Protocol):
    """One request, as the gateway and the worker receive it.

    The client sends it `pause_s` after the end of the previous call. For the first call, the pause counts from the
    start of the session. A client with `leaves_after_s` closes its connection that long after sending, whatever part
    of the answer it has received. `output_ids` is the answer; empty if only its length is known.
    """

    @property
    def pause_s(self) -> float: ...
    @property
    def leaves_after_s(self) -> float | None: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def max_tokens(self) -> int | None: ...
    @property
    def output_ids(self) -> Sequence[int]: ...

    def prompt(self) -> Prompt: ...

    def request(self, name: str, block_tokens: int) -> EngineRequest:
        """Return the request as a worker with blocks of `block_tokens` receives it."""


class TextCall:
    """A request in pieces of text, which the gateway and the worker know by the same chain of hashes.

    `before` is the previous call. If this prompt continues it, only the new part is hashed.
    """

    __slots__ = ("_before", "_chains", "_text", "kind", "leaves_after_s", "max_tokens", "output_ids", "pause_s", "said")

    def __init__(self, call: plan.Call, before: TextCall | None = None, leaves_after_s: float | None = None) -> None:
        self.said = call
        self.kind = call.kind
        self.pause_s = call.pause_s
        self.leaves_after_s = leaves_after_s
        self.max_tokens = call.max_tokens
        self.output_ids: Sequence[int] = ()
        self._text = call.prompt.plus(call.answer)
        self._before = before if before is not None and _goes_on(call.prompt, before._text.pieces) else None
        self._chains: dict[int, list[int]] = {}

    @property
    def prompt_tokens(self) -> int:
        return self.said.prompt.tokens

    def chain(self, block_tokens: int) -> list[int]:
        """Return the hashes of the full blocks of prompt and answer together, computed once per block size."""
        chain = self._chains.get(block_tokens)
        if chain is None:
            known = [] if self._before is None else self._before.chain(block_tokens)
            chain = self._chains[block_tokens] = extend(known, self._text, block_tokens)
        return chain

    def prompt(self) -> Prompt:
        """Return the prompt, known by its part of the chain."""
        tokens = self.prompt_tokens
        return Prompt(tokens, PromptSource.IDS, lambda size: self.chain(size)[: tokens // size])

    def request(self, name: str, block_tokens: int) -> EngineRequest:
        """Return the request, known by the chain; the answer ends where it was drawn to end, whatever the limit."""
        answer_tokens = self.said.answer[1]
        hashed = HashedText(self.prompt_tokens, self.chain(block_tokens))
        return EngineRequest(name, (), self.max_tokens or answer_tokens, stop_after=answer_tokens, hashed=hashed)


@dataclass(frozen=True, slots=True)
class Session:
    """Calls of one client, one after the other."""

    id: str
    start_s: float
    calls: tuple[Asked, ...]


def sessions_of(planned: plan.Plan, leaves_after_s: float | None = None) -> Iterator[Session]:
    """Yield the plan's sessions; each client leaves `leaves_after_s` after it sent a call."""
    for session in planned.sessions:
        calls: list[TextCall] = []
        for call in session.calls:
            calls.append(TextCall(call, calls[-1] if calls else None, leaves_after_s))
        yield Session(session.id, session.start_s + session.calls[0].pause_s, tuple(calls))


def _goes_on(text: Text, pieces: tuple[Piece, ...]) -> bool:
    return text.pieces[: len(pieces)] == pieces
