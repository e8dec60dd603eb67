"""One call from its client to a worker and back, and a client that may leave before the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from backends.engine.engine import EngineRequest, EngineRequestState, FinishReason, RequestRefused
from loadtest.sim.answers import Answer
from loadtest.sim.network import Transfer
from loadtest.sim.outcome import Ending, Outcome
from loadtest.sim.sessions import Asked
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker


class Placement(Protocol):
    """The place of a call, which receives the call's progress."""

    @property
    def worker(self) -> EngineWorker: ...

    @property
    def predicted_tokens(self) -> int | None:
        """Prompt tokens that the gateway expects in the worker's cache; None if unknown."""

    def progressed(self, tokens: int) -> None:
        """Note that the answer has `tokens` tokens. Called for the first and last one, and on demand between."""

    def finished(self, state: EngineRequestState) -> None:
        """Note that the answer is complete."""

    def left(self) -> None: ...

    def refused(self) -> None:
        """Note that the worker can never run the call."""


class Direct:
    """A worker called past the gateway, which therefore learns nothing of the call."""

    __slots__ = ("worker",)

    predicted_tokens = None

    def __init__(self, worker: EngineWorker) -> None:
        self.worker = worker

    def progressed(self, tokens: int) -> None:
        """Do nothing: the gateway does not see this call."""

    def finished(self, state: EngineRequestState) -> None:
        """Do nothing: the gateway does not see this call."""

    def left(self) -> None:
        """Do nothing: the gateway does not see this call."""

    def refused(self) -> None:
        """Do nothing: the gateway does not see this call."""


P = TypeVar("P", bound=Placement)


class PlacedCall(Generic[P]):
    """Carries one placed call. `request_s` is the delay to the worker; `ended` gets the outcome, once.

    `sent_s` is the time at which the client sent the call; None means now.
    """

    __slots__ = (
        "_answer",
        "_call",
        "_ended",
        "_name",
        "_over",
        "_placement",
        "_progressed",
        "_request_s",
        "_sent_s",
        "_session",
        "_time",
        "_tokens",
        "_transfer",
        "_ttft_s",
    )

    def __init__(
        self,
        time: VirtualTime,
        name: str,
        session: str,
        call: Asked,
        placement: P,
        request_s: float,
        ended: Callable[[Outcome], None],
        sent_s: float | None = None,
    ) -> None:
        self._time = time
        self._name = name
        self._session = session
        self._call = call
        self._placement = placement
        self._progressed = placement.progressed
        self._ended = ended
        self._request_s = request_s
        self._sent_s = time.now_s if sent_s is None else sent_s
        self._answer: Answer | None = None
        self._transfer: Transfer | None = None
        self._ttft_s: float | None = None
        self._tokens = 0
        self._over = False
        time.after(request_s, self._submit)
        if call.leaves_after_s is not None:
            time.at(max(time.now_s, self._sent_s + call.leaves_after_s), self._leave)

    def _submit(self) -> None:
        if not self._over:
            worker = self._placement.worker
            try:
                self._answer = worker.submit(self._request(worker), self._call.output_ids, self._arrived)
            except RequestRefused:
                self._placement.refused()
                self._end(Ending.REJECTED)

    def _request(self, worker: EngineWorker) -> EngineRequest:
        return self._call.request(self._name, worker.engine.block_size)

    def _arrived(self, tokens: int, finish: FinishReason | None) -> None:
        if self._over:
            return
        if self._ttft_s is None:
            self._ttft_s = self._time.now_s - self._sent_s
        self._tokens = tokens
        self._progressed(tokens)
        if finish is not None and self._answer is not None:
            self._placement.finished(self._answer.state)
            self._end(Ending.FINISHED)

    def _leave(self) -> None:
        if self._over:
            return
        self._placement.worker.catch_up()
        self._placement.left()
        self._time.after(self._request_s, self._drop)
        self._end(Ending.LEFT)

    def _drop(self) -> None:
        """Free the worker, which learns only now that the client has left."""
        self._placement.worker.abort(self._name)

    def _found_tokens(self) -> int | None:
        """Return how many of the prompt's tokens the worker found cached; None if the call never began there."""
        return None if self._answer is None else self._answer.state.cached_tokens

    def _prefilled_by(self) -> str | None:
        """Return the other worker that computed the prompt, if there was one."""
        return None

    def _end(self, ending: Ending) -> None:
        self._over = True
        self._ended(
            Outcome(
                id=self._name,
                session=self._session,
                ending=ending,
                worker=self._placement.worker.name,
                sent_s=self._sent_s,
                ended_s=self._time.now_s,
                ttft_s=self._ttft_s,
                prompt_tokens=self._call.prompt_tokens,
                output_tokens=self._tokens,
                predicted_tokens=self._placement.predicted_tokens,
                cached_tokens=self._found_tokens(),
                direct=isinstance(self._placement, Direct),
                answer=self._answer,
                prefilled_by=self._prefilled_by(),
            )
        )
