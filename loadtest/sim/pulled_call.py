"""One call whose worker pulls the start of the prompt from another worker's host memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from backends.engine.engine import EngineRequest, RequestRefused
from loadtest.sim.exchange import PlacedCall
from loadtest.sim.network import Transfer
from loadtest.sim.outcome import Ending, Outcome
from loadtest.sim.placements import PulledPlacement
from loadtest.sim.sessions import Asked
from loadtest.sim.virtual_time import VirtualTime


class PulledCall(PlacedCall):
    """Carries one call. The transfer begins once the worker has space for the prompt."""

    __slots__ = ("_pulled", "_transfer")

    def __init__(
        self,
        time: VirtualTime,
        name: str,
        session: str,
        call: Asked,
        placement: PulledPlacement,
        request_s: float,
        ended: Callable[[Outcome], None],
        sent_s: float | None = None,
    ) -> None:
        self._pulled = placement
        self._transfer: Transfer | None = None
        super().__init__(time, name, session, call, placement, request_s, ended, sent_s)

    def _submit(self) -> None:
        if self._over:
            return
        worker = self._placement.worker
        try:
            worker.receive(self._request(worker), self._move)
        except RequestRefused:
            self._placement.refused()
            self._end(Ending.REJECTED)

    def _move(self, cached_tokens: int) -> None:
        pulled, worker = self._pulled, self._placement.worker
        request = self._request(worker)
        own_tokens = max(cached_tokens, worker.host_tokens(request))
        held_tokens = pulled.source.host_tokens(request)
        self._pulled.begins()
        if held_tokens <= own_tokens:
            self._begin(request, own_tokens)
            return
        self._transfer = pulled.network.start(
            pulled.source.name,
            worker.name,
            held_tokens - own_tokens,
            lambda: self._begin(request, held_tokens),
        )

    def _begin(self, request: EngineRequest, loaded_tokens: int) -> None:
        self._transfer = None
        loaded = replace(request, loaded_tokens=loaded_tokens)
        self._answer = self._placement.worker.submit(loaded, self._call.output_ids, self._arrived)

    def _leave(self) -> None:
        if not self._over:
            super()._leave()
            if self._transfer is not None:
                self._pulled.network.cancel(self._transfer)
