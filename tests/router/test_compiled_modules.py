import sys
import tomllib
from pathlib import Path

import pytest

from tests.properties.harness import World
from tests.support.answers import END, STREAM_HEAD, chunk, event, json_head
from tests.support.raw_client import PLAIN, post

ROOT = Path(__file__).parents[2]
PACKAGES = tuple(f"router/{name}/" for name in ("requests", "gateway", "placement", "residency", "tokenization"))
PACKAGES += ("policies/",)
INTERPRETED = {"policies/rules/round_robin.py", "policies/rules/rule.py"}
"""What the test's requests run through and is not compiled: rules are examples to write one by."""

pytestmark = pytest.mark.source_only


@pytest.fixture(scope="module")
def settings():
    hooks = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
    return hooks["mypyc"]


def matched(pattern):
    if "/" not in pattern:
        return {path for path in sources() if path.rpartition("/")[2] == pattern}
    return {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern.strip("/"))}


def sources():
    for package in ("policies", "backends", "router", "loadtest"):
        yield from (path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*.py"))


@pytest.fixture(scope="module")
def compiled(settings):
    included = set().union(*map(matched, settings["include"]))
    return included - set().union(*map(matched, settings["exclude"]))


@pytest.fixture(scope="module")
def hot_path():
    """The modules whose functions run for one streamed and one plain chat."""
    world = World()
    client = world.client()
    client.send(post())
    files = set()

    def profile(frame, kind, _):
        if kind == "call":
            files.add(frame.f_code.co_filename)

    def answer_both():
        world.dials[0].send(STREAM_HEAD, *(chunk(event(text)) for text in "abc"), END)
        client.send(post(body=PLAIN))
        body = b'{"id":"x","choices":[]}'
        world.dials[-1].send(json_head(len(body)) + body)

    sys.setprofile(profile)
    try:
        answer_both()
    finally:
        sys.setprofile(None)
    assert client.got.count(b"HTTP/1.1 200") == 2
    paths = {Path(name).relative_to(ROOT).as_posix() for name in files if name.startswith(str(ROOT))}
    return {path for path in paths if path.startswith(PACKAGES)}


def test_every_module_that_a_request_runs_through_is_compiled(compiled, hot_path):
    assert {"router/gateway/flow/flow.py", "router/gateway/flow/answer/relay.py"} <= hot_path
    assert hot_path - compiled == INTERPRETED


def test_every_pattern_of_the_build_matches_a_module(settings):
    empty = [pattern for pattern in (*settings["include"], *settings["exclude"]) if not matched(pattern)]
    assert empty == []


def test_every_module_of_the_gateway_is_in_the_build(settings):
    modules = {path for path in sources() if path.startswith("router/gateway/") and not path.endswith("__init__.py")}
    assert modules <= set().union(*map(matched, settings["include"]))
