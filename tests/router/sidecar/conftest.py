import pytest
import uvloop


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(config, item):
    """Use the product's loop: its child processes and descriptors behave differently from those of asyncio's own."""
    return {"uvloop": uvloop.new_event_loop}
