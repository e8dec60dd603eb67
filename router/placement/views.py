"""Build the views of a request and of its candidates that the policy receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from policies.view import FleetView, RequestView
from router.placement.decode_step_time import Output
from router.placement.endpoints import Candidate
from router.placement.lifecycle_events import Request
from router.placement.output_length import OutputLengths
from router.placement.residency_source import ResidencySource
from router.placement.worker_load import WorkerLoads
from router.residency.view import Match


class ViewBuilder:
    """Combine reserved and learned load (`loads`), cached prefixes (`residency`) and answer lengths
    (`output_lengths`)."""

    def __init__(self, loads: WorkerLoads, residency: ResidencySource, output_lengths: OutputLengths) -> None:
        self._loads = loads
        self._residency = residency
        self._output_lengths = output_lengths

    def build(
        self, request: Request, candidates: Sequence[Candidate], now_s: float
    ) -> tuple[RequestView, FleetView, Mapping[int, Match]]:
        """Return the views of the request and of `candidates` in their order, and the prefix matches by slot."""
        prompt = request.prompt
        output = Output(self._output_lengths.expected_tokens(request), self._output_lengths.mean_tokens)
        remaining_s = self._output_lengths.remaining_s()
        if prompt is None or not request.reads_cache:
            tokens = request.prompt_tokens if prompt is None else prompt.tokens
            workers = self._loads.views(candidates, None, tokens, now_s, output, remaining_s)
            return self.request_view(request, now_s), FleetView(now_s, workers), {}
        matches = self._residency.match(prompt, [candidate.slot for candidate in candidates])
        block_tokens = candidates[0].block_tokens
        hashes = prompt.chain(block_tokens)
        workers = self._loads.views(candidates, matches, prompt.tokens, now_s, output, remaining_s, hashes)
        view = self.request_view(request, now_s, hashes, block_tokens)
        return view, FleetView(now_s, workers), matches

    def request_view(
        self, request: Request, now_s: float, hashes: Sequence[int] = (), block_tokens: int = 0
    ) -> RequestView:
        """Return the view of the request alone."""
        return RequestView(
            id=request.id,
            model=request.model or "",
            prompt_tokens=request.prompt_tokens if request.prompt is None else request.prompt.tokens,
            block_tokens=block_tokens,
            block_hashes=hashes,
            session_id=request.session_id,
            max_tokens=request.max_tokens,
            priority=request.priority,
            decode_s=self._output_lengths.expected_s(request),
            waited_s=max(0.0, now_s - request.arrived_s),
        )
