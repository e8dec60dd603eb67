"""What the outcomes of requests say about the health of their workers.

`trial`: the request was the trial of a half-open endpoint.
"""

from __future__ import annotations

from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.health import WorkerState
from router.placement.fleet.notify import notify


def trial_given_up(fleet: Fleet, endpoint: FleetEndpoint) -> None:
    """End the trial without a result, for example because its client left. Another request may become the trial."""
    endpoint.health.trial_running = False
    if endpoint.state is WorkerState.HALF_OPEN:
        notify(fleet.on_change)


def succeeded(fleet: Fleet, endpoint: FleetEndpoint, *, trial: bool, complete: bool) -> None:
    """Record a first token or, with `complete`, a complete answer, which may be a 4xx."""
    before = endpoint.state
    endpoint.health.traffic_succeeded(trial=trial, complete=complete)
    fleet.update(endpoint, before)


def failed(fleet: Fleet, endpoint: FleetEndpoint, reason: str, now_s: float, *, trial: bool) -> None:
    before = endpoint.state
    endpoint.health.traffic_failed(reason, now_s, trial=trial)
    fleet.under_pressure(endpoint)
    fleet.update(endpoint, before)


def late(fleet: Fleet, endpoint: FleetEndpoint, reason: str, began_s: float, now_s: float, *, trial: bool) -> None:
    """Record that a request, placed at `began_s`, got no event in time.

    It does not count while the worker has done something else meanwhile, or is needed.
    """
    if fleet.evidence(endpoint, now_s).progress_s >= began_s or fleet.needed(endpoint):
        avoid(fleet, endpoint, None, now_s, trial=trial)
    else:
        failed(fleet, endpoint, reason, now_s, trial=trial)


def avoid(fleet: Fleet, endpoint: FleetEndpoint, retry_after_s: float | None, now_s: float, *, trial: bool) -> None:
    """Record an outcome that may not be the worker's fault: avoid it for the Retry-After, or for a moment."""
    endpoint.health.avoid(now_s, retry_after_s)
    fleet.under_pressure(endpoint)
    if trial:
        trial_given_up(fleet, endpoint)


def stops(fleet: Fleet, endpoint: FleetEndpoint, now_s: float, *, trial: bool) -> None:
    """Record that the worker answered that it shuts down. It gets no request until another process answers."""
    before = endpoint.state
    if endpoint.stopping_since_s is None:
        endpoint.stopping_since_s = now_s
    if trial:
        endpoint.health.trial_running = False
    fleet.update(endpoint, before)
