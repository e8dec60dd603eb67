"""vLLM's rules for scheduling and caching, with one test per rule, through the engine's public calls."""

import pytest

from backends.engine.engine import EngineRequest
from backends.engine.events import BlocksCached, BlocksEvicted


def prompt(count, start=0):
    return list(range(start, start + count))


def stored_events(result):
    return [event for event in result.events if isinstance(event, BlocksCached)]


# --- cached blocks, and the time of caching ---------------------------------------------------------------------


@pytest.mark.parametrize(("length", "cached"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12)])
def test_hits_are_full_blocks_and_never_the_last_token(make_engine, run_one, length, cached):
    engine = make_engine()
    run_one(engine, "a", prompt(length))
    assert run_one(engine, "b", prompt(length)).cached_tokens == cached


def test_three_equal_prompts_in_one_step_report_0_992_992(make_engine):
    engine = make_engine(block_size=16, num_blocks=1000)
    states = [engine.add(EngineRequest(name, prompt(1000), 1), 0.0) for name in "abc"]
    result = engine.step(0.0)
    assert [state.cached_tokens for state in states] == [0, 992, 992]
    assert (result.prefills, result.prefill_tokens) == (3, 1016)
    assert [len(event.hashes) for event in stored_events(result)] == [62]


def test_blocks_of_a_chunk_are_reusable_before_the_prompt_is_done(make_engine):
    engine = make_engine(max_num_batched_tokens=12)
    engine.add(EngineRequest("a", prompt(40), 1), 0.0)
    engine.step(0.0)
    engine.step(1.0)
    engine.step(2.0)
    late = engine.add(EngineRequest("b", prompt(40), 1), 3.0)
    engine.step(3.0)
    assert late.cached_tokens == 36


def test_generated_tokens_are_cached_for_the_next_turn(make_engine, run_one):
    engine = make_engine()
    first = run_one(engine, "a", prompt(6), max_tokens=8)
    history = first.tokens.tolist()
    assert len(history) == 14
    # The 14th token was sampled but never computed; 13 computed tokens are three full blocks.
    assert run_one(engine, "b", [*history, 7, 7, 7]).cached_tokens == 12


def test_an_adapter_or_a_salt_has_a_cache_of_its_own(make_engine, run_one):
    engine = make_engine()
    names = [{}, {"lora_name": "x"}, {"cache_salt": "x"}, {"lora_name": "x", "cache_salt": "x"}]
    assert [run_one(engine, f"1{i}", prompt(9), **names[i]).cached_tokens for i in range(4)] == [0, 0, 0, 0]
    assert [run_one(engine, f"2{i}", prompt(9), **names[i]).cached_tokens for i in range(4)] == [8, 8, 8, 8]


# --- events -----------------------------------------------------------------------------------------------------


def test_one_event_covers_a_run_of_blocks_and_names_its_parent(make_engine):
    engine = make_engine(max_num_batched_tokens=10)
    engine.add(EngineRequest("a", prompt(19), 1, lora_name="x", cache_salt="s"), 0.0)
    first, second = engine.step(0.0), engine.step(1.0)
    [one], [other] = first.events, second.events
    assert (one.parent, one.token_ids, one.block_size) == (None, prompt(8), 4)
    assert one.extra_keys == (("x", "s"), ("x",))
    assert (other.parent, other.token_ids) == (one.hashes[-1], prompt(8, 8))
    assert (other.lora_name, other.extra_keys) == ("x", (("x",), ("x",)))


def test_a_decoded_block_is_announced_at_the_end_of_the_step_that_fills_it(make_engine, drive):
    engine = make_engine()
    engine.add(EngineRequest("a", prompt(5), 6), 0.0)
    results = drive(engine)
    assert [len(result.events) for result in results] == [1, 0, 0, 1, 0, 0]
    assert results[3].events[0].token_ids == [4, 1000, 1001, 1002]
    assert results[3].events[0].parent == results[0].events[0].hashes[0]


def test_evictions_are_announced_before_the_blocks_that_replace_them(make_engine, run_one):
    engine = make_engine(num_blocks=4)
    run_one(engine, "a", prompt(12))
    engine.add(EngineRequest("b", prompt(8, 100), 1), 0.0)
    events = engine.step(0.0).events
    assert [type(event) for event in events] == [BlocksEvicted, BlocksEvicted, BlocksCached]
    assert run_one(engine, "c", prompt(12)).cached_tokens == 4


def test_equal_blocks_computed_twice_are_announced_twice(make_engine, run_one):
    engine = make_engine()
    first = engine.add(EngineRequest("a", prompt(4), 1), 0.0)
    second = engine.add(EngineRequest("b", prompt(4), 1), 0.0)
    announced = stored_events(engine.step(0.0))
    assert (first.cached_tokens, second.cached_tokens) == (0, 0)
    assert [event.hashes for event in announced] == [announced[0].hashes] * 2


# --- order and limits -------------------------------------------------------------------------------------------


def test_a_long_prompt_is_computed_in_chunks_of_the_budget(make_engine, drive):
    engine = make_engine(max_num_batched_tokens=16)
    engine.add(EngineRequest("a", prompt(40), 2), 0.0)
    results = drive(engine)
    assert [result.prefill_tokens for result in results] == [16, 16, 8, 0]
    assert [len(result.outputs) for result in results] == [0, 0, 1, 1]


def test_decodes_come_first_and_chunks_take_the_rest_of_the_budget(make_engine):
    engine = make_engine(max_num_batched_tokens=16)
    for name in "ab":
        engine.add(EngineRequest(name, [ord(name)] * 3, 50), 0.0)
    engine.step(0.0)
    engine.add(EngineRequest("long", prompt(60), 1), 0.0)
    steps = [engine.step(0.0) for _ in range(5)]
    assert [(step.decodes, step.prefill_tokens) for step in steps] == [(2, 14)] * 4 + [(2, 4)]
    assert [[name for name, *_ in step.outputs] for step in steps] == [["a", "b"]] * 4 + [["a", "b", "long"]]


def test_a_running_prefill_goes_before_a_waiting_one(make_engine):
    engine = make_engine(max_num_batched_tokens=16)
    engine.add(EngineRequest("long", prompt(28), 1), 0.0)
    short = engine.add(EngineRequest("short", prompt(6, 100), 1), 0.0)
    assert engine.step(0.0).prefills == 1
    assert short.first_scheduled_s is None
    second = engine.step(1.0)
    assert (second.prefills, second.prefill_tokens) == (2, 16)
    assert short.first_scheduled_s == 1.0


def test_no_more_than_max_num_seqs_run(make_engine, drive):
    engine = make_engine(max_num_seqs=2)
    states = [engine.add(EngineRequest(str(i), prompt(4, 10 * i), 3), 0.0) for i in range(5)]
    engine.step(0.0)
    assert engine.statistics()["running"] == 2
    assert engine.statistics()["waiting"] == 3
    assert max(result.decodes + result.prefills for result in drive(engine)) == 2
    scheduled_s = [state.first_scheduled_s for state in states]
    assert scheduled_s == sorted(scheduled_s)


def test_a_request_that_does_not_fit_blocks_those_behind_it(make_engine):
    engine = make_engine(num_blocks=11)
    engine.add(EngineRequest("a", prompt(20), 4), 0.0)
    engine.step(0.0)
    big = engine.add(EngineRequest("big", prompt(24, 100), 1), 0.0)
    small = engine.add(EngineRequest("small", prompt(4, 200), 1), 0.0)
    for now_s in (1.0, 2.0, 3.0):
        engine.step(now_s)
        assert (big.first_scheduled_s, small.first_scheduled_s) == (None, None)
    engine.step(4.0)
    assert (big.first_scheduled_s, small.first_scheduled_s) == (4.0, 4.0)


def test_a_request_is_admitted_only_if_its_whole_prompt_fits(make_engine):
    engine = make_engine(num_blocks=11, max_num_batched_tokens=8)
    engine.add(EngineRequest("a", prompt(7), 12), 0.0)
    engine.step(0.0)
    long = engine.add(EngineRequest("long", prompt(36, 100), 1), 0.0)
    engine.step(1.0)
    assert long.first_scheduled_s is None


# --- preemption -------------------------------------------------------------------------------------------------


def crowd(make_engine, **options):
    """Run two requests that fit at first, but not at their end: there are 6 blocks, and each request needs 4 in the
    end.
    """
    engine = make_engine(num_blocks=7, **options)
    return engine, [engine.add(EngineRequest(name, prompt(9, 100 * i), 8), 0.0) for i, name in enumerate("ab")]


def test_the_last_admitted_request_is_preempted_and_recomputed(make_engine, drive):
    engine, (first, second) = crowd(make_engine)
    results = drive(engine)
    assert [result.preempted for result in results].count(1) == 1
    assert (first.preemptions, second.preemptions) == (0, 1)
    assert engine.statistics()["preemptions"] == 1
    preempted = next(index for index, result in enumerate(results) if result.preempted)
    assert [name for name, *_ in results[preempted].outputs] == ["a"]
    assert [token for result in results for name, token, _ in result.outputs if name == "b"] == list(range(1000, 1008))


def test_recomputation_reuses_cached_blocks_and_reports_the_first_hit(make_engine, drive):
    engine, (_, second) = crowd(make_engine)
    results = drive(engine)
    resumed = [result for result in results if result.prefills and result.started_s > 0]
    assert len(resumed) == 1
    # 9 prompt and 4 generated tokens; a's own growth evicted b's tail, so the hit is short of its 12 full tokens.
    assert resumed[0].prefill_tokens < 13
    assert second.cached_tokens == 0
    assert engine.statistics()["prefix_queries_tokens"] == 18


def test_a_preempted_request_goes_to_the_front_and_nothing_is_admitted_in_that_step(make_engine):
    engine, (_, second) = crowd(make_engine)
    while not second.preemptions:
        late = engine.add(EngineRequest(f"late{engine.statistics()['steps']}", prompt(20, 500), 1), 0.0)
        result = engine.step(0.0)
    assert result.preempted == 1
    assert engine.statistics()["running"] == 1
    assert late.first_scheduled_s is None
    while second.output_tokens < 8:
        engine.step(0.0)
    assert late.first_scheduled_s is None


def test_a_request_that_finds_no_block_preempts_itself_when_it_is_the_last(make_engine, drive):
    engine = make_engine(num_blocks=5)
    first = engine.add(EngineRequest("a", prompt(5), 10), 0.0)
    second = engine.add(EngineRequest("b", prompt(7, 100), 3), 0.0)
    results = drive(engine)
    assert (first.preemptions, second.preemptions) == (0, 1)
    assert (first.output_tokens, second.output_tokens) == (10, 3)
    assert results[2].preempted == 1
