import pytest

from router.config.problems import ConfigError
from router.settings import load

CLASSES = {"chat": {"floor": 0.5, "slo": {"ttft": "500ms", "tpot": 0.03}, "max_wait_s": 10}, "batch": {"share": 0}}


def test_classes_are_read_in_their_order():
    config = load({"classes": CLASSES}, {}, None)
    assert list(config.classes) == ["chat", "batch"]
    assert config.classes["chat"].slo.ttft == 0.5
    assert (config.classes["batch"].share, config.classes["batch"].max_wait_s) == (0.0, None)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"classes": {"Chat": {}}}, "no name of a class"),
        ({"classes": {"a": {"floor": 0.5}, "b": {"floor": 0.5}}}, "leaves nothing"),
        ({"classes": {"a": {"service_tiers": ["flex"]}, "b": {"service_tiers": ["flex"]}}}, "that of the class a, too"),
        ({"classes": {f"c{n}": {} for n in range(17)}}, "more than 16 classes"),
        ({"classes": CLASSES, "routes": [{"name": "all", "request_class": "night"}]}, "no class is called night"),
        ({"tenants": {"red": {"keys": [], "classes": ["night"]}}}, "no class is called night"),
        ({"classes": CLASSES, "handover": {"connector": "nixl_pull"}}, "do not go with KV handover"),
    ],
)
def test_mistakes_in_classes_are_named(settings, problem):
    with pytest.raises(ConfigError, match=problem):
        load(settings, {}, None)
