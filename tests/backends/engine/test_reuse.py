"""Requests that announce the cached blocks that they reuse (vLLM's ``kv_cache_report_mode: full``)."""

from backends.engine.engine import EngineRequest
from backends.engine.events import BlocksCached

PROMPT = list(range(18))


def stored(results):
    return [event for result in results for event in result.events if isinstance(event, BlocksCached)]


def test_reused_blocks_are_announced_from_the_first_on_without_a_copy(make_engine, drive):
    engine = make_engine()
    engine.add(EngineRequest("first", PROMPT, 1), 0.0)
    (filled,) = stored(drive(engine))
    before = engine.statistics()["cached_blocks"]
    engine.add(EngineRequest("plain", PROMPT, 1), 0.0)
    assert stored(drive(engine)) == []
    state = engine.add(EngineRequest("asking", [*PROMPT, *range(90, 96)], 1, announces_reuse=True), 0.0)
    again, new = stored(drive(engine))
    assert state.cached_tokens == 16
    assert again == filled and again.parent is None and len(again.hashes) == 4
    assert new.parent == again.hashes[-1] and len(new.hashes) == 2
    assert engine.statistics()["cached_blocks"] == before + 2


def test_announcements_carry_adapter_and_salt(make_engine, drive):
    engine = make_engine()
    for name in ("first", "again"):
        request = EngineRequest(name, PROMPT, 1, None, "style", "salt", announces_reuse=True)
        engine.add(request, 0.0)
        (event,) = stored(drive(engine))
    assert (event.lora_name, event.extra_keys) == ("style", (("style", "salt"), *[("style",)] * 3))


def test_a_request_without_a_hit_announces_nothing(make_engine, drive):
    engine = make_engine()
    engine.add(EngineRequest("new", PROMPT, 1, announces_reuse=True), 0.0)
    assert len(stored(drive(engine))) == 1


def test_a_request_that_waits_for_kv_space_is_announced_on_every_step(make_engine, drive):
    """vLLM also looks up the prefix at each step, so a busy worker announces it repeatedly."""
    engine = make_engine(num_blocks=13)
    engine.add(EngineRequest("first", PROMPT, 1), 0.0)
    drive(engine)
    engine.add(EngineRequest("long", list(range(500, 530)), 8), 0.0)
    engine.step(0.0)
    engine.add(EngineRequest("waiting", [*PROMPT, *range(90, 112)], 1, announces_reuse=True), 0.0)
    again = [event for event in stored(drive(engine)) if event.parent is None and event.token_ids[0] == 0]
    assert len(again) > 3
