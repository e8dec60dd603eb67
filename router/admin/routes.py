"""Routes: what each takes, how many requests it placed, and its shadow policies."""

from __future__ import annotations

from router.admin.documents import Routes, ShadowComparison, ShadowPolicy
from router.admin.operations import Answer, Call
from router.admin.problems import not_found
from router.placement.shadow import ShadowTotals
from router.placement.traffic_routes import TrafficRoute, TrafficRoutes


async def list_all(call: Call) -> Answer:
    """Answer with every route, in the order in which they are tried."""
    return Answer(Routes(routes=[route.config for route in _routes(call).all]))


async def show(call: Call) -> Answer:
    """Answer with one route."""
    return Answer(_find(call).config)


async def shadow(call: Call) -> Answer:
    """Answer with the comparison of the route's shadow policies with the policy that decided."""
    route, window_s = _find(call), call.query["window_s"]
    shadows = call.system.dispatcher.shadows(route.name)
    found = {} if shadows is None else shadows.compared(call.system.now_s(), window_s)
    return Answer(
        ShadowComparison(
            route=route.name,
            policies=list(route.policies),
            window_s=window_s,
            share=route.config.shadow_share,
            shadows=[compared(name, totals) for name, totals in found.items()],
        )
    )


def compared(name: str, totals: ShadowTotals) -> ShadowPolicy:
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
    return TrafficRoutes(call.system.config.routes)


def _find(call: Call) -> TrafficRoute:
    name = call.path["name"]
    route = _routes(call).named(name)
    if route is None:
        raise not_found(f"route {name!r}", "GET /admin/v1/routes lists all")
    return route
