"""Build the views of a request and of its candidates that the policy receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from policies.view import FleetView, RequestView, RunningShare
from router.placement.fleet.endpoints import Candidate
from router.placement.fleet.residency_source import ResidencySource
from router.placement.learning.decode_step_time import Output
from router.placement.learning.output_length import OutputLengths
from router.placement.load.fleet_load import WorkerLoads
from router.placement.request import Request
from router.residency.slot_groups import Matches, nothing_known
from router.residency.view import Match

Found: TypeAlias = Mapping[int, Match] | Matches
"""The matches of a prompt: by slot, or as arrays by row."""


def match_of(found: Found | None, slot: int, row: int) -> Match | None:
    return found.at(row) if isinstance(found, Matches) else None if found is None else found.get(slot)


class ViewBuilder:
    """Combine reserved and learned load (`loads`), cached prefixes (`residency`) and answer lengths
    (`output_lengths`)."""

    def __init__(self, loads: WorkerLoads, residency: ResidencySource, output_lengths: OutputLengths) -> None:
        self._loads = loads
        self.running_share: RunningShare = loads.running_share
        """Answers policies that ask for a running share."""
        self._residency = residency
        self._output_lengths = output_lengths

    def build(
        self, request: Request, candidates: Sequence[Candidate], now_s: float
    ) -> tuple[RequestView, FleetView, Found | None]:
        prompt = request.prompt
        expected_tokens = self._output_lengths.expected_tokens(request)
        output = Output(expected_tokens, self._output_lengths.mean_tokens)
        remaining_s = self._output_lengths.remaining_s()
        reads_cache = prompt is not None and request.reads_cache
        block_tokens = candidates[0].block_tokens if reads_cache else 0
        hashes = prompt.chain(block_tokens) if prompt is not None and reads_cache else ()
        view = self.request_view(request, now_s, hashes, block_tokens)
        tokens = request.prompt_tokens if prompt is None else prompt.tokens
        rows = self._loads.rows(candidates)
        if rows is None:
            matches = None
            if prompt is not None and reads_cache:
                matches = self._residency.match(prompt, [candidate.slot for candidate in candidates])
            workers = self._loads.views(candidates, matches, tokens, now_s, output, remaining_s, hashes)
            fleet = FleetView(now_s, workers, self._loads.roster(candidates), None, self.running_share)
            return view, fleet, matches
        cached = nothing_known(len(candidates))
        if prompt is not None and reads_cache:
            cached = self._residency.match_all(prompt, rows.slots)
        columns = self._loads.columns(rows, cached, tokens, now_s, output, remaining_s, hashes)
        fleet = FleetView(now_s, None, rows.roster, columns, self.running_share)
        return view, fleet, cached if reads_cache else None

    def request_view(
        self, request: Request, now_s: float, hashes: Sequence[int] = (), block_tokens: int = 0
    ) -> RequestView:
        expected_tokens = self._output_lengths.expected_tokens(request)
        return RequestView(
            id=request.id,
            model=request.model or "",
            prompt_tokens=request.prompt_tokens if request.prompt is None else request.prompt.tokens,
            block_tokens=block_tokens,
            block_hashes=hashes,
            session_id=request.session_id,
            max_tokens=request.max_tokens,
            priority=request.priority,
            decode_s=self._output_lengths.decode_s(expected_tokens),
            waited_s=max(0.0, now_s - request.arrived_s),
        )
