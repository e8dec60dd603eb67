"""OverProcesses the documents of several processes about the same workers: loads and counts are summed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from router.admin.fleet.worker_documents import CandidateDocument, Estimates, Load, PredictedCached, Worker

Reports = Mapping[int, Worker]
"""One worker as each process reports it. If the reports differ, the first process that has probed the worker counts."""


def merge_workers(fleets: Mapping[int, Sequence[Worker]]) -> list[Worker]:
    """Return every worker of the first process, merged with the reports of the others."""
    if not fleets:
        return []
    by_id = {process: {worker.id: worker for worker in workers} for process, workers in fleets.items()}
    first = next(iter(fleets.values()))
    return [
        merge_worker({process: workers[one.id] for process, workers in by_id.items() if one.id in workers})
        for one in first
    ]


def merge_worker(reports: Reports) -> Worker:
    """Return one worker. If processes report different states, the worker's notes name these states."""
    first = next((worker for worker in reports.values() if worker.candidates), next(iter(reports.values())))
    differing = [
        f"process {process} has it {worker.state} ({worker.reason})"
        for process, worker in reports.items()
        if worker.state != first.state
    ]
    candidates = [
        _candidate([each for worker in reports.values() for each in worker.candidates if each.id == one.id])
        for one in first.candidates
    ]
    in_flight = sum(worker.in_flight for worker in reports.values())
    return replace(first, in_flight=in_flight, candidates=candidates, notes=[*first.notes, *differing])


def _candidate(reports: Sequence[CandidateDocument]) -> CandidateDocument:
    return replace(
        reports[0],
        load=_load([each.load for each in reports]),
        estimates=_estimates([each.estimates for each in reports]),
        predicted_cached=_predicted([each.predicted_cached for each in reports]),
        links=max((each.links for each in reports), key=lambda links: sum(link.transfers for link in links)),
    )


def _load(loads: Sequence[Load]) -> Load:
    """Add up the reserved requests, which each process reports for itself. Foreign requests are the same for all
    processes.
    """
    return Load(
        queued_requests=sum(load.queued_requests for load in loads),
        queued_tokens=sum(load.queued_tokens for load in loads),
        running_requests=sum(load.running_requests for load in loads),
        kv_tokens=sum(load.kv_tokens for load in loads),
        foreign_requests=min(load.foreign_requests for load in loads),
    )


def _estimates(estimates: Sequence[Estimates]) -> Estimates:
    """Return the estimates of the process with the most observations."""
    best = max(estimates, key=lambda each: each.observations)
    return replace(best, observations=sum(each.observations for each in estimates))


def _predicted(counts: Sequence[PredictedCached]) -> PredictedCached:
    differences: dict[str, int] = {}
    for count in counts:
        for reason, responses in count.differences.items():
            differences[reason] = differences.get(reason, 0) + responses
    return PredictedCached(
        equal=sum(count.equal for count in counts),
        over=sum(count.over for count in counts),
        under=sum(count.under for count in counts),
        absolute_error_tokens=sum(count.absolute_error_tokens for count in counts),
        reported_tokens=sum(count.reported_tokens for count in counts),
        differences=differences,
        pending=sum(count.pending for count in counts),
    )
