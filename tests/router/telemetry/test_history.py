import pytest

from router.metrics.registry import Registry
from router.placement.metrics import PlacementMetrics
from router.requests.metrics import GatewayMetrics
from router.telemetry.exposition import instruments_of
from router.telemetry.history import KEPT, TrafficHistory
from tests.support.metrics import count_prompt

CHAT = ("/v1/chat/completions", "default", "llama")
OTHER = ("/v1/completions", "default", "llama")


class Traffic:
    def __init__(self):
        self.registry, self.at = Registry(), 1_000.0
        self.metrics, self.placement = GatewayMetrics(self.registry), PlacementMetrics(self.registry)
        self.history = TrafficHistory(lambda: self.at)
        self.look()

    def look(self, seconds=0.0, held=None, queued=0):
        self.at += seconds
        snapshot = instruments_of(self.registry)
        snapshot.values["warmroute_held_requests"] = held or {}
        snapshot.values["warmroute_queued_requests"] = {(): queued}
        self.history.observe(snapshot)
        return self.history.points[-1] if self.history.points else None


@pytest.fixture
def traffic():
    return Traffic()


def test_a_point_has_the_rates_and_quantiles_since_the_one_before(traffic):
    for labels in (CHAT, CHAT, OTHER, OTHER):
        traffic.metrics.ttft.observe(0.3, labels)
        traffic.metrics.itl.at(labels).observe_all([0.012] * 32)
        traffic.metrics.output_lengths.observe(50, labels)
    count_prompt(traffic.registry, CHAT, 3_000, 1_000)
    count_prompt(traffic.registry, OTHER, 1_000, 0)
    traffic.metrics.errors.add(1.0, ("no_worker", "before_first", "", ""))
    point = traffic.look(10.0, held={CHAT[1:]: 2}, queued=1)
    (route,) = point.routes
    assert (route.route, route.model, route.streams_per_s, route.answers_per_s) == ("default", "llama", 0.4, 0.4)
    assert route.output_tokens_per_s == 20.0
    assert 0.2 < route.ttft_p50_s <= route.ttft_p95_s <= 0.5
    assert 0.01 <= route.gap_p50_s <= route.gap_p95_s <= 0.025
    assert (point.at, point.seconds, point.cached_share) == (1_010.0, 10.0, 0.25)
    assert (point.errors, point.held, point.queued) == ({"before_first": 1}, 2, 1)


def test_cached_share_errors_and_held_requests_are_by_route_and_model(traffic):
    batch = ("/v1/completions", "batch", "llama")
    count_prompt(traffic.registry, CHAT, 1_000, 600)
    count_prompt(traffic.registry, batch, 1_000, 0)
    traffic.metrics.ttft.observe(0.3, CHAT)
    for labels, phase in (
        (CHAT, "stream"),
        (CHAT, "stream"),
        (OTHER, "before_first"),
        (("unknown", "", ""), "request"),
    ):
        traffic.metrics.errors.add(1.0, ("code", phase, *labels[1:]))
    point = traffic.look(10.0, held={("batch", "llama"): 3})
    by_route = {one.route: (one.cached_share, one.errors, one.held) for one in point.routes}
    assert by_route == {"batch": (0.0, {}, 3), "default": (0.6, {"stream": 2, "before_first": 1}, 0)}
    assert (point.cached_share, point.errors) == (0.3, {"stream": 2, "before_first": 1, "request": 1})
    assert traffic.look(10.0).routes == []


def test_the_share_of_misrouted_answers_is_of_those_that_were_compared(traffic):
    traffic.placement.comparisons.add(4.0, ("a:1", "over"))
    traffic.placement.misrouted.add(1.0, ("a:1",))
    assert traffic.look(10.0).misrouted_share == 0.25
    assert traffic.look(10.0).misrouted_share is None


def test_without_traffic_a_point_is_empty(traffic):
    traffic.metrics.ttft.observe(0.3, CHAT)
    traffic.look(10.0)
    point = traffic.look(10.0)
    assert (point.routes, point.cached_share, point.errors) == ([], None, {})


def test_values_above_all_bounds_count_as_the_last_bound(traffic):
    traffic.metrics.ttft.observe(9_999.0, CHAT)
    (route,) = traffic.look(10.0).routes
    assert route.ttft_p50_s == route.ttft_p95_s == max(traffic.metrics.ttft.bounds)
    assert route.gap_p50_s is None


def test_an_hour_is_kept(traffic):
    for _ in range(KEPT + 5):
        traffic.look(10.0)
    assert len(traffic.history.points) == KEPT
    assert traffic.history.points[0].at == 1_000.0 + 60.0


def test_a_point_has_the_classes_of_now_and_what_rose_since_the_one_before(traffic):
    def look(at, refused, met):
        snapshot = instruments_of(traffic.registry)
        snapshot.values |= {
            "warmroute_class_waiting_requests": {("chat",): 0, ("batch",): 7},
            "warmroute_class_waiting_seconds": {("chat",): 0.0, ("batch",): 3.5},
            "warmroute_class_tenant_waiting_requests": {("batch", "red"): 5, ("batch", ""): 2},
            "warmroute_class_refusals": {("chat", "waited"): 1.0, ("chat", "queue-full"): refused},
            "warmroute_class_service_level_requests": {
                ("chat", "ttft", "true"): met, ("chat", "ttft", "false"): 10.0,
            },
        }  # fmt: skip
        traffic.at = at
        traffic.history.observe(snapshot)
        return traffic.history.points[-1]

    look(1_010.0, 2.0, 10.0)
    chat, batch = look(1_020.0, 5.0, 13.0).classes
    assert (chat.request_class, chat.waiting, chat.refused, chat.level_share, chat.tenants) == ("chat", 0, 3, 1.0, {})
    assert (batch.waiting, batch.work_s, batch.level_share) == (7, 3.5, None)
    assert batch.tenants == {"red": 5, "": 2}
