from router.metrics.registry import Registry
from router.telemetry.exposition import instruments_of
from router.telemetry.history import TrafficHistory


async def test_points_come_newest_first_and_in_pages(client, system):
    at = 1_000.0
    system.traffic = TrafficHistory(lambda: at)
    registry = Registry()
    for number in range(4):
        at = 1_000.0 + 10 * number
        registry.histogram("time_to_first_token_seconds").observe(0.5, ("/v1/completions", "default", "m"))
        system.traffic.observe(instruments_of(registry))
    first = (await client.get("/admin/v1/traffic?limit=2")).json()
    assert [point["at"] for point in first["points"]] == [1_030.0, 1_020.0]
    assert first["points"][0]["routes"][0]["streams_per_s"] == 0.1
    rest = (await client.get(f"/admin/v1/traffic?limit=2&cursor={first['next']}")).json()
    assert ([point["at"] for point in rest["points"]], rest["next"]) == ([1_010.0], None)
