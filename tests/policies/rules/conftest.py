import random

import pytest

from policies.registry import build_policy
from policies.spec import PolicySpec


@pytest.fixture
def build():
    return lambda name, **params: build_policy(PolicySpec(name, params), random.Random(7))


@pytest.fixture
def decide(build, fleet, request_view):
    """The decision of a fresh rule about a request of 160 tokens in ten blocks, on a fleet."""

    def run(name, *, prompt=None, params=None, **workers):
        asked = {"tokens": 160, "blocks": range(10)} if prompt is None else prompt
        return build(name, **(params or {})).decide(request_view(**asked), fleet(**workers))

    return run
