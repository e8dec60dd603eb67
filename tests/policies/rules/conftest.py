import random

import pytest

from policies.registry import build_policy
from policies.spec import PolicySpec


@pytest.fixture
def build():
    return lambda name, **params: build_policy(PolicySpec(name, params), random.Random(7))
