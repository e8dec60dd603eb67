import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engine.engine import EngineRequest, FinishReason, RequestRefused
from backends.engine.events import CacheCleared

REQUEST = EngineRequest("a", [1, 2, 3, 4, 5], 3)


@pytest.fixture
def engine(make_engine):
    return make_engine()


def test_sizes_come_from_the_profile_unless_given(make_engine):
    given_sizes = make_engine(num_blocks=11)
    assert (given_sizes.num_blocks, given_sizes.block_size, given_sizes.capacity_tokens) == (11, 4, 40)
    assert make_engine(block_size=16, num_blocks=None).num_blocks == 27_500


def test_an_engine_without_requests_has_nothing_to_do(engine):
    assert not engine.has_work
    assert engine.step(0.0) is None


def test_tokens_come_one_a_step_and_the_last_says_why_it_is_the_last(engine, drive):
    state = engine.add(REQUEST, 0.0)
    outputs = [result.outputs for result in drive(engine)]
    assert outputs == [[("a", 1000, None)], [("a", 1001, None)], [("a", 1002, FinishReason.LENGTH)]]
    assert state.tokens.tolist() == [1, 2, 3, 4, 5, 1000, 1001, 1002]
    assert state.finish_reason == "length"


@pytest.mark.parametrize(
    ("max_tokens", "stop_after", "count", "reason"),
    [(5, None, 5, "length"), (5, 2, 2, "stop"), (5, 5, 5, "stop"), (5, 9, 5, "length"), (1, None, 1, "length")],
)
def test_generation_ends_at_the_first_of_its_limits(engine, run_one, max_tokens, stop_after, count, reason):
    state = run_one(engine, "a", [1], max_tokens, stop_after=stop_after)
    assert (state.output_tokens, state.finish_reason) == (count, reason)


def test_a_request_records_its_times(engine):
    state = engine.add(REQUEST, 1.0)
    first = engine.step(2.0)
    engine.step(3.0)
    engine.step(4.0)
    assert (state.arrived_s, state.first_scheduled_s) == (1.0, 2.0)
    assert state.first_token_s == 2.0 + first.duration_s


def test_steps_take_the_modelled_time(engine):
    engine.add(REQUEST, 0.0)
    prefill, decode = engine.step(0.0), engine.step(1.0)
    assert prefill.duration_s * 1e3 == pytest.approx(3.9 + 5 * 18.5e-3 + 0.787e-6 * 5 * 2.5)
    assert decode.duration_s * 1e3 == pytest.approx(6.32 + 0.012 + 41.4e-6 * 6)
    assert (prefill.prefills, prefill.decodes, decode.prefills, decode.decodes) == (1, 0, 0, 1)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (EngineRequest("b", [], 1), "empty"),
        (EngineRequest("b", [1], 0), "at least 1"),
        (EngineRequest("b", [1], 1, stop_after=0), "at least 1"),
        (EngineRequest("b", [-1], 1), "integers"),
        (EngineRequest("b", ["x"], 1), "integers"),
        (EngineRequest("a", [1], 1), "in use"),
        (EngineRequest("b", [1] * 257, 1), "cache of 256 tokens"),
        (EngineRequest("b", [1] * 200, 58), "200 prompt tokens and max_tokens 58"),
    ],
)
def test_a_request_that_can_never_run_is_refused(engine, request_, reason):
    engine.add(REQUEST, 0.0)
    with pytest.raises(RequestRefused, match=reason):
        engine.add(request_, 0.0)
    assert engine.statistics()["waiting"] == 1


def test_a_request_that_just_fits_runs(engine, run_one):
    assert run_one(engine, "b", [1] * 200, max_tokens=57).output_tokens == 57


def test_an_id_may_come_again_after_its_request_ended(engine, run_one):
    assert run_one(engine, "a", [1], 1) is not run_one(engine, "a", [1], 1)


def test_abort_frees_the_blocks_but_keeps_their_content(engine, run_one):
    state = engine.add(REQUEST, 0.0)
    engine.step(0.0)
    assert engine.statistics()["kv_usage"] == 2 / 64
    assert engine.abort("a")
    assert not engine.abort("a")
    assert not engine.has_work
    assert engine.statistics()["kv_usage"] == 0.0
    assert state.finish_reason == "abort"
    assert run_one(engine, "b", [1, 2, 3, 4, 9]).cached_tokens == 4


def test_a_waiting_request_can_be_aborted(engine):
    engine.add(REQUEST, 0.0)
    assert engine.abort("a")
    assert engine.statistics()["waiting"] == 0
    assert not engine.abort("never seen")


def test_the_cache_is_reset_only_while_nothing_runs(engine, run_one):
    engine.add(REQUEST, 0.0)
    engine.step(0.0)
    assert not engine.reset_prefix_cache()
    engine.abort("a")
    assert engine.reset_prefix_cache()
    assert engine.statistics()["cached_blocks"] == 0
    again = engine.add(REQUEST, 0.0)
    events = engine.step(0.0).events
    assert again.cached_tokens == 0
    assert [type(event).__name__ for event in events] == ["CacheCleared", "BlocksCached"]


def test_a_reset_of_an_empty_cache_is_announced_too(engine):
    assert engine.reset_prefix_cache()
    engine.add(REQUEST, 0.0)
    assert engine.step(0.0).events[0] == CacheCleared()


def test_statistics_follow_vllms_definitions(engine, run_one):
    run_one(engine, "a", list(range(10)), 3)
    run_one(engine, "b", list(range(10)), 3, stop_after=2)
    engine.add(EngineRequest("c", [1], 1), 0.0)
    engine.abort("c")
    expected = {
        "running": 0,
        "waiting": 0,
        "kv_usage": 0.0,
        "num_blocks": 65,
        "free_blocks": 64,
        "cached_blocks": 3,
        "evictions": 0,
        "prefix_queries_tokens": 20,
        "prefix_hits_tokens": 8,
        "preemptions": 0,
        "kept_blocks": 0,
        "prompt_tokens": 20,
        "prompt_cached_tokens": 8,
        "prefill_tokens": 12,
        "generation_tokens": 5,
        "finished_stop": 1,
        "finished_length": 1,
        "finished_abort": 1,
        "steps": 5,
    }
    statistics = engine.statistics()
    assert statistics.pop("busy_s") > 0
    assert statistics == expected


def run_crowd(engine, drive):
    for index in range(12):
        engine.add(EngineRequest(str(index), [index % 3] * (5 + index), 4 + index), 0.0)
    return drive(engine)


def test_equal_seeds_give_equal_runs(make_engine, drive):
    first, same, other = (run_crowd(make_engine(num_blocks=20, jitter=0.05, seed=s), drive) for s in (1, 1, 2))
    assert first == same
    assert [result.outputs for result in first] == [result.outputs for result in other]
    assert [result.duration_s for result in first] != [result.duration_s for result in other]


def test_a_step_of_256_decodes_costs_well_under_a_millisecond(make_engine):
    engine = make_engine(block_size=16, num_blocks=27_500)
    for index in range(256):
        engine.add(EngineRequest(str(index), range(index, index + 16), 200), 0.0)
    engine.step(0.0)
    fastest_s = float("inf")
    for _ in range(64):
        started_s = time.perf_counter()
        engine.step(0.0)
        fastest_s = min(fastest_s, time.perf_counter() - started_s)
    assert fastest_s < 1e-3


requests = st.lists(
    st.tuples(
        st.lists(st.integers(0, 1), min_size=1, max_size=30),
        st.integers(1, 12),
        st.one_of(st.none(), st.integers(1, 12)),
        st.sampled_from([None, "salt"]),
        st.integers(0, 6),
        st.sampled_from([None, None, None, 1, 3]),
    ),
    max_size=20,
)


@given(requests, st.integers(12, 30), st.integers(1, 24), st.integers(1, 6), st.booleans())
def test_the_engine_stays_consistent_for_any_input(
    make_engine, event_listener, work, num_blocks, budget, max_seqs, ahead
):
    engine = make_engine(
        num_blocks=num_blocks,
        max_num_batched_tokens=budget,
        max_num_seqs=max_seqs,
        sample=lambda state: state.output_tokens % 2,
        async_scheduling=ahead,
    )
    listener = event_listener()
    states, delivered = [], {}

    def step():
        result = engine.step(0.0)
        if result is None:
            return
        statistics = engine.statistics()
        listener.hear(result.events)
        assert 0 < result.prefill_tokens + result.decodes <= budget
        assert result.prefills + result.decodes <= max_seqs
        assert statistics["running"] <= max_seqs
        assert sum((+listener.copies).values()) == statistics["cached_blocks"]
        held = {block for state in states for block in state.blocks}
        assert statistics["free_blocks"] == num_blocks - 1 - len(held)
        for name, token, _ in result.outputs:
            delivered.setdefault(name, []).append(token)

    for index, (ids, max_tokens, stop_after, salt, steps_after, abort_after) in enumerate(work):
        states.append(engine.add(EngineRequest(str(index), ids, max_tokens, stop_after, None, salt), 0.0))
        for count in range(steps_after):
            if count == abort_after:
                engine.abort(str(index))
            step()
    for _ in range(5_000):
        step()
    assert not engine.has_work
    assert engine.statistics()["kv_usage"] == 0.0
    for state in states:
        assert state.tokens.tolist()[state.prompt_tokens :] == delivered.get(state.id, [])
        if state.finish_reason is not FinishReason.ABORT:
            assert state.output_tokens == state.output_limit
            assert state.cached_tokens % 4 == 0
            assert state.cached_tokens < state.prompt_tokens


@given(st.lists(st.tuples(st.integers(0, 8), st.lists(st.integers(0, 1), min_size=1, max_size=20)), max_size=12))
def test_a_lone_request_hits_the_longest_computed_prefix(make_engine, run_one, turns):
    engine = make_engine(num_blocks=2_000, sample=lambda state: state.output_tokens % 2)
    computed = []
    for index, (earlier, ids) in enumerate(turns):
        history = computed[earlier % len(computed)] if computed and earlier else []
        prompt = history + ids
        whole_blocks = {tuple(tokens[:end]) for tokens in computed for end in range(4, len(tokens) + 1, 4)}
        expected = max((end for end in range(4, len(prompt), 4) if tuple(prompt[:end]) in whole_blocks), default=0)
        state = run_one(engine, str(index), prompt, max_tokens=5)
        assert state.cached_tokens == expected
        computed.append(state.tokens.tolist()[:-1])
