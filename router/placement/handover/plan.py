"""A plan of legs: which workers share a request, in which order, and at what cost."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec
import numpy as np

from backends.vllm.handover.offloading_peer import PEER_LABEL, SIDE_CHANNEL_PORT
from backends.vllm.handover.parameters import labelled_address
from policies.handover_cost import MoveCost
from policies.kv_space import columns_fit, fits
from policies.view import Decision, Residency, WorkerView
from policies.wrappers.prefill_lanes import STREAM_WEIGHT
from router.placement.decision_log.decisions import DecisionRecord
from router.placement.fleet.endpoints import Candidate
from router.placement.fleet.roles import receives
from router.placement.handover.links import LinkKind
from router.placement.request import Request
from router.placement.selection import Selection

HANDOVER_FIRST_EVENT_S = 60.0
"""Longest time from the end of the prefill to the first event of the answer, or to the first event of a request that
pulls. Then one worker computes the whole request."""


class Leg(NamedTuple):
    """A part of a request on one worker, which is at `row` of what was `seen`.

    `runs` says when: as the first one, after the leg before it, or beside it.
    """

    worker: Candidate
    seen: DecisionRecord
    row: int
    runs: Literal["first", "after", "beside"] = "first"


class LegPlan(NamedTuple):
    """The legs of a request that workers share, and the cost. Nothing is reserved yet.

    KV cache moves from `source`, to the worker of the last leg. `at_any_cost`: the plan may cost more than one worker.
    """

    kind: LinkKind
    legs: tuple[Leg, ...]
    source: Candidate
    cost: MoveCost
    at_any_cost: bool = False

    @property
    def answer(self) -> Leg:
        return self.legs[-1]


def choose(leg: Leg, reason: str) -> None:
    """Decide for the worker of a leg, whatever the policy says."""
    ids = leg.seen.fleet.ids
    leg.seen.decision = Decision((ids[leg.row], *ids[: leg.row], *ids[leg.row + 1 :]), reason)


def prefill_of(request: Request) -> Request:
    """Return the request as a prefill worker gets it. Its whole answer is the first token, so its prefill is seen."""
    return msgspec.structs.replace(request, max_tokens=1, hinted_tokens=None, stream=True)


def after_transfer(view: WorkerView, cost: MoveCost) -> WorkerView:
    """Return a worker as it will be after a transfer.

    What its response reports as cached is what the other worker had cached, so nothing is predicted or learned from it.
    """
    return msgspec.structs.replace(
        view,
        cached_tokens=cost.loaded_tokens,
        uncached_tokens=view.cached_tokens + view.uncached_tokens - cost.loaded_tokens,
        prefill_s=cost.rest_s,
        residency=Residency.UNKNOWN,
    )


def peer_address(candidate: Candidate) -> tuple[str, int] | None:
    """Return host and port of a worker's side channel; None if its label is no address."""
    endpoint = candidate.endpoint
    label = endpoint.labels.get(PEER_LABEL, str(SIDE_CHANNEL_PORT))
    address = labelled_address(label, endpoint.endpoint.host)
    return None if address is None else (address[0], address[1] + (candidate.rank or 0))


def decoding(alone: Selection, connector: str | None) -> tuple[Selection | None, Selection | None]:
    """Return the workers among the candidates that may receive a KV cache: those that are ready, and one on trial."""
    able = [one for one in alone.candidates if receives(one.endpoint.role, one.endpoint.labels, connector)]
    ready = tuple(one for one in able if one.endpoint is not alone.trial)
    on_trial = tuple(one for one in able if one.endpoint is alone.trial)
    return Selection(ready) if ready else None, Selection(on_trial, alone.trial) if on_trial else None


def free_first(decided: DecisionRecord) -> int | None:
    """Return the row of the worker, with KV space for the prompt, that would cost least without a prefill.

    None if there is none, or if the policy may have chosen its worker for another reason than time.
    """
    fleet = decided.fleet
    if decided.decision.unit != "s" or not fleet.equal_weights:
        return None
    costs_s = fleet.queue_wait_s + fleet.kv_wait_s + STREAM_WEIGHT * fleet.decode_externality_s
    row = int(np.where(columns_fit(fleet), costs_s, np.inf).argmin())
    return row if fits(fleet.worker(row)) else None
