import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engine.request import FinishReason
from backends.simulated.generation import ClientGone, Inbox, StopText

letters = st.text(alphabet="ab ", max_size=30)
stops = st.lists(st.text(alphabet="ab ", min_size=1, max_size=4), min_size=1, max_size=3)


def naive(parts, strings, keep):
    """Search the whole text after every part."""
    text = ""
    for part in parts:
        text += part
        found = [(text.find(string), string) for string in strings if string in text]
        if found:
            at, string = min(found)
            return text[: at + len(string) if keep else at], string
    return text, None


@given(st.lists(letters, min_size=1, max_size=8), stops, st.booleans())
def test_stop_text_equals_a_search_of_the_whole_text(parts, strings, keep):
    watch = StopText(tuple(strings), keep=keep)
    shown, found = "", None
    for n, part in enumerate(parts, 1):
        now, found = watch.feed(part, last=n == len(parts), search=True)
        shown += now
        if found is not None:
            break
    assert (shown, found) == naive(parts, strings, keep)


def test_stop_text_holds_back_no_more_than_needed():
    watch = StopText(("END",), keep=False)
    assert watch.feed("abcE", last=False, search=True) == ("ab", None)
    assert watch.feed("x", last=False, search=True) == ("c", None)
    assert watch.feed("y", last=True, search=True) == ("Exy", None)


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
