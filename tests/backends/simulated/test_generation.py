import asyncio

import pytest

from backends.engine.request import FinishReason
from backends.simulated.generation import ClientGone, Inbox


async def test_inbox_collects_until_it_is_read():
    inbox = Inbox()
    inbox.put(("generation", 1, None))
    inbox.put(("generation", 2, FinishReason.LENGTH))
    assert await inbox.take() == [("generation", 1, None), ("generation", 2, FinishReason.LENGTH)]
    waiting = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    inbox.put(("generation", 3, None))
    assert await waiting == [("generation", 3, None)]


async def test_an_inbox_reports_a_client_that_left():
    inbox = Inbox()
    waiting = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    inbox.client_gone()
    with pytest.raises(ClientGone):
        await waiting
    inbox.put(("generation", 1, None))
    with pytest.raises(ClientGone):
        await inbox.take()
