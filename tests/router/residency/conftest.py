"""Events in both shapes that vLLM has published."""

import pytest

from tests.support.kv_wire import Wire


@pytest.fixture(params=["map", "row"])
def wire(request: pytest.FixtureRequest) -> Wire:
    return Wire(request.param)
