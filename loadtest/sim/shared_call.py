"""One call that two workers share: the prompt is computed on one, and the answer written on the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from backends.engine.engine import EngineRequest, EngineRequestState, FinishReason, RequestRefused
from loadtest.sim.exchange import PlacedCall
from loadtest.sim.outcome import Outcome
from loadtest.sim.placements import SharedPlacement
from loadtest.sim.sessions import Asked
from loadtest.sim.virtual_time import VirtualTime


class SharedCall(PlacedCall[SharedPlacement]):
    """Carries one call. `alone` gets the reason why it has to run on one worker after all, at most once.

    The prompt's blocks stay in use on the first worker until the transfer has ended. It begins once the second worker
    has space for the whole prompt. The call runs alone if one worker refuses it, or if no token comes within the
    placement's limit, which stands for the lease.
    """

    __slots__ = ("_alone", "_prefill")

    def __init__(
        self,
        time: VirtualTime,
        name: str,
        session: str,
        call: Asked,
        placement: SharedPlacement,
        request_s: float,
        ended: Callable[[Outcome], None],
        alone: Callable[[str], None],
        sent_s: float | None = None,
    ) -> None:
        self._alone = alone
        self._prefill: EngineRequestState | None = None
        super().__init__(time, name, session, call, placement, request_s, ended, sent_s)

    def _submit(self) -> None:
        if self._over:
            return
        worker = self._placement.prefill_worker
        try:
            request = replace(self._request(worker), max_tokens=1, stop_after=None, keeps_blocks=True)
            self._prefill = worker.submit(request, self._call.output_ids, self._prefilled).state
        except RequestRefused as error:
            self._give_up(str(error))

    def _prefilled(self, tokens: int, finish: FinishReason | None) -> None:
        if self._over or self._prefill is None:
            return
        self._placement.prefilled(self._prefill)
        self._time.after(self._placement.limit_s, self._expire)
        self._time.after(self._request_s, self._receive)

    def _receive(self) -> None:
        if self._over:
            return
        try:
            self._placement.worker.receive(self._received(), self._move)
        except RequestRefused as error:
            self._give_up(str(error))

    def _move(self, cached_tokens: int) -> None:
        placed = self._placement
        source, target = placed.prefill_worker.name, placed.worker.name
        tokens = max(0, self._call.prompt_tokens - cached_tokens)
        self._transfer = placed.network.start(source, target, tokens, self._moved)

    def _moved(self) -> None:
        self._transfer = None
        self._placement.prefill_worker.let_go(self._name)
        self._answer = self._placement.worker.submit(self._received(), self._call.output_ids, self._arrived)

    def _expire(self) -> None:
        if not self._over and self._ttft_s is None:
            self._give_up("the lease has ended")

    def _give_up(self, reason: str) -> None:
        self._over = True
        self._time.after(self._request_s, self._drop)
        self._alone(reason)

    def _drop(self) -> None:
        if self._transfer is not None:
            self._placement.network.cancel(self._transfer)
            self._transfer = None
        self._placement.prefill_worker.abort(self._name)
        super()._drop()

    def _received(self) -> EngineRequest:
        return replace(self._request(self._placement.worker), received=True)

    def _found_tokens(self) -> int | None:
        return None if self._prefill is None else self._prefill.cached_tokens

    def _prefilled_by(self) -> str | None:
        return self._placement.prefill_worker.name
