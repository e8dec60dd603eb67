import re
from pathlib import Path

import pytest
import yaml

from router.config.problems import ConfigError
from router.security.keys import KeyEntry, digest_of
from router.settings import load

CLASSES = {"chat": {"floor": 0.5, "slo": {"ttft": "500ms", "tpot": 0.03}, "max_wait_s": 10}, "batch": {"share": 0}}

PAGE = Path(__file__).parents[3] / "docs/how-to/protect-interactive-traffic.md"


def test_the_examples_of_the_page_are_valid():
    text = PAGE.read_text(encoding="utf-8")
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    examples = [block for block in blocks if "classes" in block]
    assert len(examples) == 3
    for example in examples:
        keys = [KeyEntry(name, digest_of(name.encode() * 8)).line for name in example.get("tenants", ())]
        config = load(example | ({"auth": {"api_keys": keys}} if keys else {}), {}, None)
        assert list(config.classes) == list(example["classes"])


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
