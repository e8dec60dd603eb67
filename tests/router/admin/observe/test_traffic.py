from router.telemetry.exposition import instruments_of
from router.telemetry.history import TrafficHistory
from router.telemetry.metrics import Metrics


async def test_points_come_newest_first_and_in_pages(client, system):
    at = 1_000.0
    system.traffic = TrafficHistory(None, lambda: at)
    metrics = Metrics()
    for number in range(4):
        at = 1_000.0 + 10 * number
        metrics.first_event(("/v1/completions", "default", "m"), 0.5)
        system.traffic.observe(instruments_of(metrics.registry))
    first = (await client.get("/admin/v1/traffic?limit=2")).json()
    assert [point["at"] for point in first["points"]] == [1_030.0, 1_020.0]
    assert first["points"][0]["routes"][0]["streams_per_s"] == 0.1
    rest = (await client.get(f"/admin/v1/traffic?limit=2&cursor={first['next']}")).json()
    assert ([point["at"] for point in rest["points"]], rest["next"]) == ([1_010.0], None)
