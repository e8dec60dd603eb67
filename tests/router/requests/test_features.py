"""Which features a request meets, by the routes of the moment."""

from __future__ import annotations

import pytest

from router.config.model import RouteConfig
from router.requests.layer import Feature, Features, Layer, QueueFeature

pytestmark = pytest.mark.source_only  # compiled features take no subclasses


class Noted(Feature):
    """On while a route has its name."""

    def __init__(self, name):
        self.name, self.asked, self.closed = name, 0, False

    def adopt(self, routes):
        return any(route.name == self.name for route in routes)

    def layer(self, request):
        self.asked += 1
        return Layer() if self.name == "a" else None

    def readings(self):
        return [("warmroute_requests", (self.name,), float(self.asked))]

    def close(self):
        self.closed = True


class Limited(Noted, QueueFeature):
    def queue(self, request):
        return self


def test_a_feature_that_is_off_is_asked_nothing_and_still_read():
    first, second, limited = Noted("a"), Noted("b"), Limited("c")
    features = Features([first, second, limited], [RouteConfig(name="b")])
    assert list(features.layers(None)) == [] and features.queue(None) is None
    assert [each.asked for each in (first, second, limited)] == [0, 1, 0]
    assert [labels for _, labels, _ in features.readings()] == [("a",), ("b",), ("c",)]
    features.close()
    assert first.closed and second.closed and limited.closed


def test_other_routes_switch_features_on_and_off():
    first, limited = Noted("a"), Limited("c")
    features = Features([first, limited], ())
    features.adopt([RouteConfig(name="a"), RouteConfig(name="c")])
    assert len(features.layers(None)) == 1 and features.queue(None) is limited
    assert limited.asked == 0, "a limit makes no layers"
    features.adopt(())
    assert list(features.layers(None)) == [] and features.queue(None) is None
