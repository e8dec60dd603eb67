"""The loop that the gateway runs on."""

import pytest
import uvloop


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(config, item):
    return {"uvloop": uvloop.new_event_loop}
