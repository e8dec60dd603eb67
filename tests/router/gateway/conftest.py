"""A builder of gateways with scripted workers, on uvloop."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import uvloop

from tests.support.gateway_rig import RigBuilder


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Callable[[], Any]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def rig() -> AsyncIterator[RigBuilder]:
    """`await rig(script, script, ..., limits={...}, timeouts={...}, ...)` starts workers and a gateway."""
    async with RigBuilder() as builder:
        yield builder
