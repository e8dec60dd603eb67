"""Routes: what each takes, how many requests it placed, and its shadow policies."""

from __future__ import annotations

from http import HTTPStatus

from router.admin import changes
from router.admin.documents import Policies, Routes, ShadowComparison, ShadowPolicy
from router.admin.http.problems import not_found
from router.admin.operations import Answer, Call
from router.placement.policies.shadow import ShadowTotals
from router.placement.policies.traffic_routes import TrafficRoute, TrafficRoutes


async def list_all(call: Call) -> Answer:
    """Answer with every route, in the order in which they are tried."""
    return changes.versioned(call, Answer(Routes(routes=[route.config for route in _routes(call).all])))


async def change(call: Call) -> Answer:
    """Check the routes and use them from the next request on."""
    outcome = await changes.set_routes(call)
    return changes.dry(outcome) if call.dry_run else changes.done(outcome, await list_all(call))


async def policies(call: Call) -> Answer:
    return changes.versioned(call, Answer(Policies(policies=dict(call.system.control.state.settings.policies))))


async def set_policy(call: Call) -> Answer:
    """Add or change a further policy."""
    outcome = await changes.set_named_policy(call)
    return changes.dry(outcome) if call.dry_run else changes.done(outcome, await policies(call))


async def remove_policy(call: Call) -> Answer:
    """Remove a further policy that no route names."""
    outcome = await changes.remove_named_policy(call)
    return changes.dry(outcome) if call.dry_run else changes.done(outcome, Answer(None, HTTPStatus.NO_CONTENT))


async def show(call: Call) -> Answer:
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
    return TrafficRoutes(call.system.control.state.settings.routes)


def _find(call: Call) -> TrafficRoute:
    name = call.path["name"]
    route = _routes(call).named(name)
    if route is None:
        raise not_found(f"route {name!r}", "GET /admin/v1/routes lists all")
    return route
