"""One call from its client to a worker and back; its client may leave before the end, and two workers may share it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from backends.engine.engine import EngineRequest, EngineRequestState, FinishReason, RequestRefused
from loadtest.sim.answers import Answer
from loadtest.sim.gateway import Placed
from loadtest.sim.handover import Transfer
from loadtest.sim.outcome import Ending, Outcome
from loadtest.sim.sessions import Asked, Session
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker
from router.placement.handover.links import Transfer as PricedTransfer
from router.placement.request import Usage


@dataclass(frozen=True, slots=True)
class Sent:
    """Call `number` of a session, and the time at which its client sent it."""

    session: Session
    number: int
    at_s: float

    @property
    def name(self) -> str:
        return f"{self.session.id}/{self.number}"

    @property
    def call(self) -> Asked:
        return self.session.calls[self.number]


class PlacedCall:
    """Carries one placed call, and reports its progress to the gateway's tickets.

    `request_s` is the delay to the worker. `ended` gets the outcome, once.
    """

    __slots__ = (
        "_answer", "_call", "_ended", "_name", "_over", "_placed", "_progress", "_request_s", "_sent",
        "_tickets", "_time", "_tokens", "_ttft_s",
    )  # fmt: skip

    def __init__(
        self, time: VirtualTime, sent: Sent, placed: Placed, request_s: float, ended: Callable[[Outcome], None]
    ) -> None:
        self._time = time
        self._sent = sent
        self._name = sent.name
        self._call = call = sent.call
        self._placed = placed
        self._tickets = placed.gateway.core.tickets
        self._progress = placed.gateway.core.tickets.progress
        self._ended = ended
        self._request_s = request_s
        self._answer: Answer | None = None
        self._ttft_s: float | None = None
        self._tokens = 0
        self._over = False
        time.after(request_s, self._submit)
        if call.leaves_after_s is not None:
            time.at(max(time.now_s, sent.at_s + call.leaves_after_s), self._leave)

    def _submit(self) -> None:
        if self._over:
            return
        worker = self._placed.worker
        try:
            self._answer = worker.submit(self._request(worker), self._call.output_ids, self._arrived)
        except RequestRefused:  # the worker answers 400
            self._tickets.finished(self._placed.ticket, Usage(), self._time.now_s, status=400)
            self._end(Ending.REJECTED)

    def _request(self, worker: EngineWorker) -> EngineRequest:
        return self._call.request(self._name, worker.engine.block_size)

    def _arrived(self, tokens: int, finish: FinishReason | None) -> None:
        """Note that the answer has `tokens` tokens. Called for the first and last one, and on demand between."""
        if self._over:
            return
        now_s = self._time.now_s
        if self._ttft_s is None:
            self._ttft_s = now_s - self._sent.at_s
        self._tokens = tokens
        if tokens == 1:
            self._first_token(now_s)
        self._progress(self._placed.ticket, tokens)
        if finish is not None and self._answer is not None:
            usage = self._usage(self._answer.state)
            self._tickets.finished(self._placed.ticket, usage, now_s)
            self._end(Ending.FINISHED)

    def _first_token(self, now_s: float) -> None:
        self._tickets.first_token(self._placed.ticket, now_s)

    def _usage(self, state: EngineRequestState) -> Usage:
        return Usage(state.prompt_tokens, state.output_tokens, state.cached_tokens)

    def _leave(self) -> None:
        if self._over:
            return
        self._placed.worker.catch_up()
        self._cancel(self._time.now_s)
        self._time.after(self._request_s, self._drop)
        self._end(Ending.LEFT)

    def _cancel(self, now_s: float) -> None:
        self._tickets.cancelled(self._placed.ticket, now_s)

    def _drop(self) -> None:
        """Free the worker, which learns only now that the client has left."""
        self._placed.worker.abort(self._name)

    def _prompt_state(self) -> EngineRequestState | None:
        """Return the request on the worker that computes the prompt; None if the call never began there."""
        return None if self._answer is None else self._answer.state

    def _end(self, ending: Ending) -> None:
        self._over = True
        placed, state = self._placed, self._prompt_state()
        ticket, first = placed.prefill or placed.ticket, placed.prefill_worker
        self._ended(
            Outcome(
                id=self._name,
                session=self._sent.session.id,
                ending=ending,
                worker=placed.worker.name,
                sent_s=self._sent.at_s,
                ended_s=self._time.now_s,
                ttft_s=self._ttft_s,
                prompt_tokens=self._call.prompt_tokens,
                output_tokens=self._tokens,
                predicted_tokens=ticket.predicted_cached_tokens,
                cached_tokens=None if state is None else state.cached_tokens,
                answer=self._answer,
                prefilled_by=None if first is None else first.name,
            )
        )


class SharedCall(PlacedCall):
    """Carries a call whose prompt is computed on one worker, and whose answer is written on the other.

    The prompt's blocks stay in use on the first worker until the transfer has ended. It begins once the second worker
    has space for the whole prompt. The call runs alone if one worker refuses it, or if no token comes within the
    gateway's limit, which stands for the lease. `alone` then gets the reason, at most once.
    """

    __slots__ = ("_alone", "_first_worker", "_prefill", "_prefill_ticket", "_priced", "_transfer")

    def __init__(
        self,
        time: VirtualTime,
        sent: Sent,
        placed: Placed,
        request_s: float,
        ended: Callable[[Outcome], None],
        alone: Callable[[str], None],
    ) -> None:
        assert placed.prefill is not None and placed.prefill_worker is not None
        self._alone = alone
        self._first_worker = placed.prefill_worker
        self._prefill: EngineRequestState | None = None
        self._prefill_ticket = placed.prefill
        self._priced: PricedTransfer | None = None
        self._transfer: Transfer | None = None
        super().__init__(time, sent, placed, request_s, ended)

    def _submit(self) -> None:
        if self._over:
            return
        worker = self._first_worker
        try:
            request = replace(self._request(worker), max_tokens=1, stop_after=None, keeps_blocks=True)
            self._prefill = worker.submit(request, self._call.output_ids, self._prefilled).state
        except RequestRefused as error:
            self._give_up(str(error))

    def _prefilled(self, tokens: int, finish: FinishReason | None) -> None:
        """Report the end of the prefill, whose whole answer is its first token."""
        if self._over or self._prefill is None:
            return
        now_s = self._time.now_s
        self._tickets.first_token(self._prefill_ticket, now_s)
        usage = Usage(self._prefill.prompt_tokens, None, self._prefill.cached_tokens)
        self._tickets.finished(self._prefill_ticket, usage, now_s)
        self._priced = self._placed.gateway.core.planner.transfer(self._placed.ticket, now_s)
        self._time.after(self._placed.gateway.limit_s(), self._expire)
        self._time.after(self._request_s, self._receive)

    def _receive(self) -> None:
        if self._over:
            return
        try:
            self._placed.worker.receive(self._received(), self._move)
        except RequestRefused as error:
            self._give_up(str(error))

    def _move(self, cached_tokens: int) -> None:
        network = self._placed.gateway.network
        assert network is not None
        tokens = max(0, self._call.prompt_tokens - cached_tokens)
        self._transfer = network.start(self._first_worker.name, self._placed.worker.name, tokens, self._moved)

    def _moved(self) -> None:
        self._transfer = None
        self._first_worker.let_go(self._name)
        self._answer = self._placed.worker.submit(self._received(), self._call.output_ids, self._arrived)

    def _first_token(self, now_s: float) -> None:
        self._tickets.arrived(self._placed.ticket)
        super()._first_token(now_s)
        if self._priced is not None:
            self._placed.gateway.core.planner.transferred(self._priced, now_s)

    def _usage(self, state: EngineRequestState) -> Usage:
        """Return the answer's length alone: what this worker reports as cached was cached on the other one."""
        return Usage(None, state.output_tokens)

    def _cancel(self, now_s: float) -> None:
        self._tickets.cancelled(self._prefill_ticket, now_s)
        super()._cancel(now_s)

    def _expire(self) -> None:
        if not self._over and self._ttft_s is None:
            self._give_up("the lease has ended")

    def _give_up(self, reason: str) -> None:
        self._over = True
        self._time.after(self._request_s, self._drop)
        self._alone(reason)

    def _drop(self) -> None:
        network = self._placed.gateway.network
        if self._transfer is not None and network is not None:
            network.cancel(self._transfer)
            self._transfer = None
        self._first_worker.abort(self._name)
        super()._drop()

    def _received(self) -> EngineRequest:
        return replace(self._request(self._placed.worker), received=True)

    def _prompt_state(self) -> EngineRequestState | None:
        return self._prefill
