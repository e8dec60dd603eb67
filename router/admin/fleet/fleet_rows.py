"""The fleet in short: a row for each candidate, cheap enough to be read every second."""

from __future__ import annotations

from msgspec.structs import replace

from backends.vllm.histogram_bounds import ITL_S
from policies.view import WorkerView
from router.admin.documents import Shape
from router.admin.http.paging import page_of, paged
from router.admin.operations import Answer, Call, OverProcesses, read
from router.admin.replies import Replies, documents_of
from router.admin.system import ProcessView
from router.admin.watch import Watch
from router.diagnosis.measured import WorkerMeasured
from router.placement.fleet.fleet import Candidate, FleetEndpoint
from router.telemetry.histogram import quantile, total

_NOTHING = WorkerMeasured()
_MOST_MODELS = 3


class FleetRow(Shape):
    """One candidate of the endpoint `worker` in short, for an overview.

    `in_flight` counts the requests at the endpoint. `kv_usage` is the share of the KV cache that running requests hold,
    as the worker last reported, and `idle_share` the share that idle context of ended turns holds. `cached_share` is
    the share of prompt tokens found cached, `ttft_s` the mean time to first token and `gap_s` the median gap between
    tokens: each of the last one to two minutes. `predicted_share` is the share of responses whose cached tokens were
    predicted exactly. null: nothing to measure. `prompts` says how the prompts of up to three models become
    token ids.
    """

    id: str
    worker: str
    name: str | None
    state: str
    reason: str
    draining: bool
    role: str
    residency: str
    view_reason: str
    in_flight: int
    queue_wait_s: float
    kv_usage: float | None = None
    idle_share: float | None = None
    cached_share: float | None = None
    predicted_share: float | None = None
    ttft_s: float | None = None
    gap_s: float | None = None
    prefill_tokens_per_s: float | None = None
    prompts: str = ""


class FleetOverview(Shape):
    """The candidates of one page, in the order in which they were added.

    `next` is the `cursor` of the following page, or null.
    """

    rows: list[FleetRow]
    next: str | None = None


def _page(call: Call, rows: list[FleetRow]) -> Answer:
    page, cursor = page_of(rows, lambda row: row.id, call.query["limit"], call.query["cursor"])
    return Answer(FleetOverview(rows=list(page), next=cursor))


def _merged(call: Call, replies: Replies) -> Answer:
    """Return the rows of the first process, with the requests of all, and what it does not know from the others."""
    found: dict[str, FleetRow] = {}
    for overview in documents_of(replies, FleetOverview).values():
        for row in overview.rows:
            first = found.setdefault(row.id, row)
            if first is not row:
                _add(first, row)
    return _page(call, list(found.values()))


@read(
    "fleet",
    FleetOverview,
    query=paged(10_000, 10_000, "most candidates to return", watch=True),
    watch=Watch("rows", "id"),
    problems={410: "the candidate that the cursor names has left the fleet"},
    processes=OverProcesses(_merged, lambda *_: {}),
)
async def list_fleet(call: Call) -> Answer:
    """All candidates in short, for an overview that follows them."""
    return _page(call, _rows(call.process))


def _rows(system: ProcessView) -> list[FleetRow]:
    """Return one row for each candidate, and for each endpoint that no probe has reached so far."""
    views = {view.id: view for view in system.core.loads.shown(system.fleet.candidates, system.now_s())}
    recent = system.measurements.recent(system.now_s())
    in_flight = system.in_flight()
    rows: list[FleetRow] = []
    for endpoint in system.fleet.endpoints:
        requests = in_flight.get(endpoint.id, 0)
        rows += [
            _row(system, one, views.get(one.id), recent.get(one.id, _NOTHING), requests) for one in endpoint.candidates
        ] or [_unknown(endpoint, requests)]
    return rows


def _add(first: FleetRow, other: FleetRow) -> None:
    first.in_flight += other.in_flight
    first.queue_wait_s = max(first.queue_wait_s, other.queue_wait_s)
    for name in ("cached_share", "predicted_share", "ttft_s", "gap_s", "prefill_tokens_per_s"):
        if getattr(first, name) is None:
            setattr(first, name, getattr(other, name))


def _unknown(endpoint: FleetEndpoint, in_flight: int) -> FleetRow:
    return FleetRow(
        id=endpoint.id,
        worker=endpoint.id,
        name=endpoint.name,
        state=endpoint.state.value,
        reason=endpoint.reason,
        draining=endpoint.draining,
        role=endpoint.role,
        residency="unknown",
        view_reason="the worker has not answered a probe so far",
        in_flight=in_flight,
        queue_wait_s=0.0,
    )


def _row(
    system: ProcessView, candidate: Candidate, view: WorkerView | None, recent: WorkerMeasured, in_flight: int
) -> FleetRow:
    endpoint, load = candidate.endpoint, system.core.loads.of(candidate)
    cache, accuracy, speed = system.residency.slot(candidate.slot).state(), load.accuracy, load.speed
    capacity = view.kv_capacity_tokens if view is not None else 0
    return replace(
        _unknown(endpoint, in_flight),
        id=candidate.id,
        residency=cache.residency.value,
        view_reason=cache.reason,
        queue_wait_s=round(view.queue_wait_s, 2) if view is not None else 0.0,
        kv_usage=None if candidate.load is None else round(candidate.load.kv_usage, 2),
        idle_share=round(view.idle_tokens / capacity, 2) if view is not None and capacity else None,
        cached_share=_share(recent.cached_tokens, recent.prompt_tokens),
        predicted_share=_share(accuracy.equal, accuracy.equal + accuracy.over + accuracy.under),
        ttft_s=_rounded(recent.ttft_s / recent.first_tokens) if recent.first_tokens else None,
        gap_s=None if recent is _NOTHING else _gap_s(recent),
        prefill_tokens_per_s=round(1 / speed.token_s, -1) if speed is not None and speed.token_s else None,
        prompts=_prompts(system, endpoint),
    )


def _prompts(system: ProcessView, endpoint: FleetEndpoint) -> str:
    cards = endpoint.facts.models if endpoint.facts is not None else ()
    models = [card.id for card in cards if card.parent is None][:_MOST_MODELS]
    return "; ".join(f"{model}: {system.identity.describe(model)}" for model in models)


def _gap_s(recent: WorkerMeasured) -> float | None:
    return _rounded(quantile(total((recent.alone, recent.beside), ITL_S), ITL_S, 0.5))


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 3) if whole else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")
