"""Requests of clients, drawn before the run: every router and every view gets the same ones.

Answers are drawn in advance too, so that a later turn's prompt does not depend on who served the earlier one. Times do:
a turn follows the end of the answer before it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from backends.engine.engine import EngineRequest, HashedText
from loadtest.workload import plan
from loadtest.workload.text import Piece, Text, extend
from router.residency.chain import SEED, extend_chain
from router.residency.prompt import Prompt, PromptSource


class Asked(Protocol):
    """One request, to the gateway and to the worker that it sends it to.

    It is sent `pause_s` after the call before it ended (the first one after the session's start). A client that
    `leaves_after_s` closes its connection so long after sending, whatever it has got by then.
    """

    @property
    def pause_s(self) -> float:
        """From the end of the call before."""
        ...

    @property
    def leaves_after_s(self) -> float | None:
        """None: it waits for the end."""
        ...

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        ...

    @property
    def max_tokens(self) -> int | None:
        """The client's limit, None where it sends none."""
        ...

    @property
    def output_ids(self) -> Sequence[int]:
        """The answer; empty where only its length is known."""
        ...

    def prompt(self) -> Prompt:
        """The prompt as the gateway identifies it."""
        ...

    def request(self, name: str, block_tokens: int) -> EngineRequest:
        """The request as a worker with such blocks takes it."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """A request in token ids: what is asked and what the model will answer."""

    prompt_ids: array[int]
    output_ids: array[int]
    pause_s: float = 0.0
    leaves_after_s: float | None = None

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.prompt_ids)

    @property
    def max_tokens(self) -> int:
        """It asks for what it gets."""
        return len(self.output_ids)

    def prompt(self) -> Prompt:
        """Hashed by its ids."""
        packed = self.prompt_ids.tobytes()
        return Prompt(
            len(self.prompt_ids), PromptSource.IDS, lambda block_tokens: extend_chain(SEED, packed, block_tokens)
        )

    def request(self, name: str, block_tokens: int) -> EngineRequest:
        """With its ids."""
        return EngineRequest(name, self.prompt_ids, len(self.output_ids))


class TextCall:
    """A request in pieces of text: gateway and worker know it by one and the same chain of hashes.

    `before` is the call that this one follows; where its prompt goes on from there, only what is new is hashed.
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
        """Length of the prompt."""
        return self.said.prompt.tokens

    def chain(self, block_tokens: int) -> list[int]:
        """Hashes of the full blocks of prompt and answer together; kept."""
        chain = self._chains.get(block_tokens)
        if chain is None:
            known = [] if self._before is None else self._before.chain(block_tokens)
            chain = self._chains[block_tokens] = extend(known, self._text, block_tokens)
        return chain

    def prompt(self) -> Prompt:
        """Known by its part of the chain."""
        tokens = self.prompt_tokens
        return Prompt(tokens, PromptSource.IDS, lambda size: self.chain(size)[: tokens // size])

    def request(self, name: str, block_tokens: int) -> EngineRequest:
        """Known by the chain; the answer stops where it does, limit or no limit."""
        answer_tokens = self.said.answer[1]
        hashed = HashedText(self.prompt_tokens, self.chain(block_tokens))
        return EngineRequest(name, (), self.max_tokens or answer_tokens, stop_after=answer_tokens, hashed=hashed)


@dataclass(frozen=True, slots=True)
class Session:
    """Calls of one client, one after the other. `direct` names the worker (by number) that it asks past the gateway."""

    id: str
    start_s: float
    calls: tuple[Asked, ...]
    direct: int | None = None


def sessions_of(planned: plan.Plan, leaves_after_s: float | None = None) -> Iterator[Session]:
    """A plan's sessions as clients play them, each call given up by its client after `leaves_after_s`."""
    for session in planned.sessions:
        calls: list[TextCall] = []
        for call in session.calls:
            calls.append(TextCall(call, calls[-1] if calls else None, leaves_after_s))
        yield Session(session.id, session.start_s + session.calls[0].pause_s, tuple(calls))


def _goes_on(text: Text, pieces: tuple[Piece, ...]) -> bool:
    return text.pieces[: len(pieces)] == pieces
