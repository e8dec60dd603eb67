"""The composition root: what is wired to what."""

from router.app import System
from router.config.model import Config


async def test_a_request_for_an_unknown_model_makes_the_watch_look_again(monkeypatch):
    system = System(Config())
    looked = []
    monkeypatch.setattr(system.watcher, "look_again", lambda: looked.append(True))
    for callback in system.fleet.on_unknown_model:
        callback("a-model-loaded-a-moment-ago")
    assert looked == [True]
    await system.aclose()


async def test_every_reading_is_in_the_catalogue():
    system = System(Config())
    page, content_type = system.exposition()
    assert b"warmroute_index_hashes" in page
    assert b"warmroute_buffered_body_bytes" in page
    assert content_type.startswith("text/plain")
    await system.aclose()
