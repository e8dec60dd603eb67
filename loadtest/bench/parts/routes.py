"""Measure what routes cost per request: ``python -m loadtest.bench.parts.routes``.

Each table has some routes with one condition each, of every kind, and a last one. Requests match the last one, which is
the dearest case. The figure is CPU time per request: facts, match and the policy of a split.
"""

from __future__ import annotations

import argparse
from statistics import median
from time import process_time

from router.config.model import RouteConfig, RouteMatch
from router.placement.traffic_routes import RouteFacts, TrafficRoutes

SIZES = (2, 5, 20, 100)
HEADERS = {b"host": b"a", b"content-type": b"application/json", b"x-team": b"chat", b"authorization": b"Bearer x"}
MATCHES = (
    RouteMatch(header={"x-team": "eval"}),
    RouteMatch(model="llama-8b"),
    RouteMatch(prompt_tokens=">32000"),
    RouteMatch(api_key="alice"),
    RouteMatch(path="/v1/completions"),
    RouteMatch(session=False),
    RouteMatch(tenant="red"),
    RouteMatch(header={"x-user": "*"}),
    RouteMatch(model="qwen*"),
    RouteMatch(stream=False),
)


def table(size: int) -> TrafficRoutes:
    """Return `size` routes, of which the last one takes every request of this measurement."""
    routes = [RouteConfig(name=f"r{place}", match=MATCHES[place % len(MATCHES)]) for place in range(size - 1)]
    return TrafficRoutes([*routes, RouteConfig(name="rest", split={"chat": 90, "batch": 10})])


def cost_us(routes: TrafficRoutes, requests: int) -> float:
    """Return the CPU time of one request in microseconds."""
    started_s = process_time()
    for _ in range(requests):
        facts = RouteFacts("llama-70b", "/v1/chat/completions", HEADERS, "bob", "blue", 2_000, True, True, 0)
        routes.match(facts).policy_of("request", "session")
    return (process_time() - started_s) / requests * 1e6


def main() -> None:
    """Print the cost of each size of table."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.parts.routes", description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000, help="requests per measurement (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="measurements per size (default: %(default)s)")
    args = parser.parse_args()
    for size in SIZES:
        routes = table(size)
        print(
            f"{size:4} routes  {median(cost_us(routes, args.requests) for _ in range(args.rounds)):6.2f} us a request"
        )


if __name__ == "__main__":
    main()
