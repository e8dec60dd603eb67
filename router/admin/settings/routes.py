"""Routes: what each takes, how many requests it placed, and its shadow policies."""

from __future__ import annotations

from router.admin import changes
from router.admin.documents import Body, Shape
from router.admin.http.parameters import Query
from router.admin.http.problems import not_found
from router.admin.operations import Answer, Call, OverProcesses, change, forwarded, read
from router.admin.replies import Replies, documents_of
from router.config.model import RouteConfig
from router.control.state import edits
from router.placement.policies.shadow import ShadowTotals
from router.placement.policies.traffic_routes import TrafficRoutes


class NewRoutes(Body):
    """The routes to use. Their fields are those of the setting `routes`."""

    routes: tuple[RouteConfig, ...]


class Routes(Shape):
    """The routes, in the order in which they are tried. Their fields are those of the setting `routes`."""

    routes: list[RouteConfig]


class ShadowPolicy(Shape):
    """One shadow policy compared with the policy that decided: means per request, null without a request.

    `agreement` is the share of equal choices. `predicted_*` are estimates for the worker that was chosen, `shadow_*`
    for the one that the shadow policy would have chosen, by the same estimators. `reported_*` came from the chosen
    worker; `predicted_for_reported_ttft_s` was predicted for the requests whose time to first token is known. `totals`
    are the sums.
    """

    name: str
    agreement: float | None
    predicted_ttft_s: float | None
    shadow_ttft_s: float | None
    predicted_cached_tokens: float | None
    shadow_cached_tokens: float | None
    reported_ttft_s: float | None
    predicted_for_reported_ttft_s: float | None
    reported_cached_tokens: float | None
    totals: ShadowTotals


class ShadowComparison(Shape):
    """What the shadow policies of a route would have chosen, over the last `window_s` seconds in whole minutes.

    `policies` decided. At most 100 shadow decisions are made per second and process.
    """

    route: str
    policies: list[str]
    window_s: int
    shadows: list[ShadowPolicy]


@read("routes", Routes, versioned=True)
async def list_routes(call: Call) -> Answer:
    """The routes, in the order in which they are tried."""
    return Answer(Routes(routes=[route.config for route in _routes(call).all]))


@change("PUT", "routes", takes=NewRoutes, gives=Routes)
async def set_routes(call: Call) -> Answer:
    """Use other routes from the next request on. Requests that wait keep their places."""
    wanted: NewRoutes = call.body
    outcome = await changes.make(call, edits.set_routes(wanted.routes), f"set {len(wanted.routes)} routes")
    return await changes.answered(call, outcome, list_routes)


def _over_processes(call: Call, replies: Replies) -> Answer:
    """Return the comparison with the sums of all processes."""
    found = list(documents_of(replies, ShadowComparison).values())
    if not found:
        return forwarded(next(iter(replies.values())))
    for other in found[1:]:
        for mine, theirs in zip(found[0].shadows, other.shadows, strict=True):
            mine.totals.add(theirs.totals)
    found[0].shadows = [_compared(shadow.name, shadow.totals) for shadow in found[0].shadows]
    return Answer(found[0])


@read(
    "routes/{name}/shadow",
    ShadowComparison,
    query=(Query("window_s", 600, 3_600, "seconds to look back, in whole minutes"),),
    problems={404: "no such route", 422: "window_s is not a number from 1 to 3600"},
    processes=OverProcesses(_over_processes),
)
async def compare_shadows(call: Call) -> Answer:
    """What the route's shadow policies would have chosen, compared with what was chosen and what came of it."""
    name, window_s = call.path["name"], call.query["window_s"]
    route = _routes(call).named(name)
    if route is None:
        raise not_found(f"route {name!r}", "GET /admin/v1/routes lists all")
    shadows = call.process.core.policies.shadows_of(route.name)
    found = {} if shadows is None else shadows.compared(call.process.now_s(), window_s)
    return Answer(
        ShadowComparison(
            route=route.name,
            policies=list(route.policies),
            window_s=window_s,
            shadows=[_compared(name, totals) for name, totals in found.items()],
        )
    )


def _compared(name: str, totals: ShadowTotals) -> ShadowPolicy:
    """Return the comparison of one shadow policy. Means without a request are null."""
    decisions = totals.decisions
    return ShadowPolicy(
        name=name,
        totals=totals,
        agreement=_mean(totals.agreed, decisions),
        predicted_ttft_s=_mean(totals.predicted_ttft_s, decisions),
        shadow_ttft_s=_mean(totals.shadow_ttft_s, decisions),
        predicted_cached_tokens=_mean(totals.predicted_cached_tokens, decisions),
        shadow_cached_tokens=_mean(totals.shadow_cached_tokens, decisions),
        reported_ttft_s=_mean(totals.reported_ttft_s, totals.ttfts),
        predicted_for_reported_ttft_s=_mean(totals.predicted_for_reported_ttft_s, totals.ttfts),
        reported_cached_tokens=_mean(totals.reported_cached_tokens, totals.hits),
    )


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None


def _routes(call: Call) -> TrafficRoutes:
    return TrafficRoutes(call.system.control.state.settings.routes)
