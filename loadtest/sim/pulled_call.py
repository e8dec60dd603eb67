"""One call whose worker pulls the start of the prompt from another worker's host memory."""

from __future__ import annotations

from dataclasses import replace

from backends.engine.engine import EngineRequest, RequestRefused
from loadtest.sim.exchange import PlacedCall
from loadtest.sim.outcome import Ending
from loadtest.sim.placements import PulledPlacement


class PulledCall(PlacedCall[PulledPlacement]):
    """Carries one call. The transfer begins once the worker has space for the prompt."""

    __slots__ = ()

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
        if self._over:
            return
        pulled, worker = self._placement, self._placement.worker
        request = self._request(worker)
        own_tokens = max(cached_tokens, worker.host_tokens(request))
        held_tokens = pulled.source.host_tokens(request)
        pulled.begins()
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

    def _drop(self) -> None:
        if self._transfer is not None:
            self._placement.network.cancel(self._transfer)
            self._transfer = None
        super()._drop()
