"""The metrics of the public port that are read at scrape time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from router.metrics.instruments import Reading
from router.requests.readings import front_readings


def gateway_readings(plane: Mapping[str, Any]) -> Iterator[Reading]:
    """Yield gauges of the data plane, from `PublicServer.statistics()` (empty while it does not listen)."""
    yield from front_readings(plane)
    yield "warmroute_client_connections", (), plane.get("connections", 0)
    yield "warmroute_connections_closed", ("refused",), plane.get("connections_refused", 0)
    yield "warmroute_connections_closed", ("evicted",), plane.get("connections_evicted", 0)
    yield "warmroute_worker_connections", (), plane.get("pools", {}).get("open", 0)
    yield "warmroute_buffered_bytes", ("responses",), plane.get("buffered_response_bytes", 0)
    yield "warmroute_connections_closed", ("slow_reader",), plane.get("slow_readers_cut", 0)
