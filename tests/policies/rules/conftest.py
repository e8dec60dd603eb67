import random

import pytest

from policies.registry import build_policy


@pytest.fixture
def build():
    return lambda name, **params: build_policy(name, params, random.Random(7))
