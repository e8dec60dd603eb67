import pytest

from backends.engine.engine import EngineRequest, RequestRefused
from backends.engine.events import BlocksCached

PROMPT = list(range(1, 11))  # two full blocks of four, and two tokens


@pytest.fixture
def engine(make_engine):
    return make_engine()


def test_the_blocks_of_a_prompt_stay_in_use_until_they_are_let_go(engine, drive):
    engine.add(EngineRequest("p", PROMPT, 1, keeps_blocks=True), 0.0)
    drive(engine)
    assert len(engine.kept_blocks("p")) == 3
    assert engine.statistics()["kept_blocks"] == 3
    assert engine.kv_usage > 0.0
    assert not engine.reset_prefix_cache()
    engine.let_go("p")
    assert engine.kept_blocks("p") is None
    assert (engine.kv_usage, engine.statistics()["kept_blocks"]) == (0.0, 0)
    assert engine.reset_prefix_cache()


def test_letting_go_twice_or_of_nothing_has_no_effect(engine, drive):
    engine.add(EngineRequest("p", PROMPT, 1, keeps_blocks=True), 0.0)
    drive(engine)
    for request_id in ("p", "p", "x"):
        engine.let_go(request_id)
    assert engine.kv_usage == 0.0


def test_an_aborted_request_keeps_nothing(engine):
    engine.add(EngineRequest("p", PROMPT, 5, keeps_blocks=True), 0.0)
    engine.step(0.0)
    engine.abort("p")
    assert engine.kept_blocks("p") is None
    assert engine.kv_usage == 0.0


def test_kept_blocks_leave_less_space_for_others(make_engine, drive):
    engine = make_engine(num_blocks=6)
    engine.add(EngineRequest("p", PROMPT, 1, keeps_blocks=True), 0.0)
    drive(engine)
    waiting = engine.add(EngineRequest("q", list(range(50, 60)), 2), 0.0)
    engine.step(0.0)
    assert waiting.first_scheduled_s is None
    engine.let_go("p")
    drive(engine)
    assert waiting.finish_reason == "length"


def test_a_received_prompt_computes_its_last_token_alone_and_announces_its_blocks(engine, drive):
    state = engine.add(EngineRequest("d", PROMPT, 3, received=True), 0.0)
    first, *rest = drive(engine)
    assert (first.prefill_tokens, len(first.outputs), len(rest)) == (1, 1, 2)
    assert state.cached_tokens == len(PROMPT) - 1
    (event,) = [event for event in first.events if isinstance(event, BlocksCached)]
    assert event.token_ids == PROMPT[:8]
    assert engine.cached_tokens(event.hashes, len(PROMPT)) == 8
    assert engine.kv_usage == 0.0


def test_a_received_prompt_ends_like_one_that_was_computed(make_engine, drive):
    ends = []
    for received in (False, True):
        engine = make_engine()
        state = engine.add(EngineRequest("d", PROMPT, 9, received=received), 0.0)
        drive(engine)
        ends.append((state.tokens.tolist(), state.computed_tokens, engine.statistics()["cached_blocks"]))
    assert ends[0] == ends[1]


def test_a_preempted_request_computes_its_prompt_itself(make_engine, drive):
    engine = make_engine(num_blocks=7)
    engine.add(EngineRequest("a", PROMPT, 12), 0.0)
    state = engine.add(EngineRequest("d", list(range(50, 60)), 8, received=True), 0.0)
    results = drive(engine)
    assert state.preemptions
    assert state.finish_reason == "length"
    assert sum(result.prefill_tokens for result in results) > len(PROMPT) + 1


def test_room_is_kept_until_the_received_request_is_admitted(make_engine, drive):
    engine = make_engine(num_blocks=6)
    request = EngineRequest("d", PROMPT, 2, received=True)
    assert engine.make_room(request) == 0
    assert len(engine.kept_blocks("d")) == 3
    other = engine.add(EngineRequest("o", list(range(50, 62)), 1), 0.0)
    engine.step(0.0)
    assert other.first_scheduled_s is None
    state = engine.add(request, 0.0)  # goes before the one that waits for its space
    drive(engine)
    assert (state.finish_reason, other.finish_reason) == ("length", "length")
    assert state.first_scheduled_s <= other.first_scheduled_s
    assert (engine.kept_blocks("d"), engine.kv_usage) == (None, 0.0)


def test_tokens_that_are_cached_need_not_come(engine, drive):
    engine.add(EngineRequest("before", PROMPT, 1), 0.0)
    drive(engine)
    assert engine.make_room(EngineRequest("d", PROMPT, 2, received=True)) == 8


def test_there_is_no_room_behind_a_request_that_waits_for_some(make_engine):
    engine = make_engine(num_blocks=6)
    engine.add(EngineRequest("runs", PROMPT, 5), 0.0)
    engine.step(0.0)
    engine.add(EngineRequest("waits", list(range(50, 62)), 1), 0.0)
    engine.step(0.0)
    small = EngineRequest("d", [70, 71], 1, received=True)
    assert engine.make_room(small) is None
    engine.abort("waits")
    assert engine.make_room(small) == 0


def test_a_request_that_never_fits_is_refused_before_its_prompt_moves(make_engine):
    with pytest.raises(RequestRefused, match="do not fit into the KV cache"):
        make_engine(num_blocks=3).check(EngineRequest("d", PROMPT, 1, received=True))
