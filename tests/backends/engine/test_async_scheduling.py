import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engine.engine import EngineRequest
from backends.engine.events import BlocksCached


def prompt(count, start=0):
    return list(range(start, start + count))


@pytest.fixture
def engine(make_engine):
    return make_engine(async_scheduling=True)


def outputs(results):
    return [[name for name, *_ in result.outputs] for result in results]


def test_one_request_alone_sees_no_difference(make_engine, drive):
    runs = []
    for ahead in (False, True):
        engine = make_engine(async_scheduling=ahead, max_num_batched_tokens=16)
        engine.add(EngineRequest("a", prompt(40), 5), 0.0)
        runs.append([(r.started_s, r.duration_s, r.outputs, r.prefill_tokens, r.decodes) for r in drive(engine)])
    assert runs[0] == runs[1]


def test_an_arrival_during_a_step_is_computed_in_the_step_after_the_next(engine):
    engine.add(EngineRequest("a", prompt(5), 9), 0.0)
    engine.step(0.0)
    late = engine.add(EngineRequest("b", prompt(5, 100), 9), 0.5)
    assert outputs([engine.step(1.0), engine.step(2.0)]) == [["a"], ["a", "b"]]
    assert late.first_scheduled_s == 1.0


def test_an_arrival_that_finds_nothing_scheduled_ahead_starts_with_the_next_step(engine):
    engine.add(EngineRequest("a", prompt(5), 1), 0.0)
    engine.step(0.0)
    engine.add(EngineRequest("b", prompt(5, 100), 1), 0.5)
    assert outputs([engine.step(1.0)]) == [["b"]]


def test_a_request_with_its_last_token_pending_is_not_scheduled_again(engine, drive):
    engine.add(EngineRequest("a", prompt(5), 3), 0.0)
    engine.add(EngineRequest("b", prompt(5, 100), 4), 0.0)
    assert [result.decodes for result in drive(engine)] == [0, 2, 2, 1]


def test_a_stop_token_costs_one_step_that_yields_nothing(engine, drive):
    state = engine.add(EngineRequest("a", prompt(5), 9, stop_after=3), 0.0)
    results = drive(engine)
    assert outputs(results) == [["a"], ["a"], ["a"], []]
    assert (state.output_tokens, state.finish_reason) == (3, "stop")
    assert results[3].decodes == 1
    assert engine.statistics()["kv_usage"] == 0.0


def test_finished_requests_leave_their_blocks_one_step_later(make_engine, drive):
    admitted = []
    for ahead in (False, True):
        engine = make_engine(num_blocks=7, async_scheduling=ahead)
        engine.add(EngineRequest("a", prompt(9), 3), 0.0)
        engine.add(EngineRequest("c", prompt(4, 200), 5), 0.0)
        big = engine.add(EngineRequest("b", prompt(12, 100), 1), 0.0)
        results = drive(engine)
        starts = [result.started_s for result in results]
        admitted.append((starts.index(big.first_scheduled_s), outputs(results).index(["c", "b"])))
    # "a" ends with step 2. The step that first computes "b" is scheduled after that end, when step 3 starts. In the
    # second case it is the step after step 3.
    assert admitted == [(3, 3), (3, 4)]


def test_an_aborted_request_gets_no_token_from_a_step_scheduled_before(engine):
    for index, name in enumerate("ab"):
        engine.add(EngineRequest(name, prompt(5, 100 * index), 9), 0.0)
    engine.step(0.0)
    assert engine.abort("a")
    after = engine.step(1.0)
    assert (after.decodes, outputs([after])) == (2, [["b"]])
    assert engine.step(2.0).decodes == 1


def test_a_decoded_block_is_reusable_once_its_last_token_is_known(engine, drive):
    first = engine.add(EngineRequest("a", prompt(5), 8), 0.0)
    announced = {}
    for index, result in enumerate(drive(engine)):
        for event in result.events:
            if isinstance(event, BlocksCached):
                announced.setdefault(event.token_ids[-1], index)
    assert first.tokens.tolist()[8:] == [1003, 1004, 1005, 1006, 1007]
    # Token 1002 is sampled by step 2 and computed by step 3; its block is stored when step 4 is scheduled, in step 3.
    assert announced == {3: 0, 1002: 3, 1006: 7}


def test_the_block_that_the_last_computed_token_fills_is_kept(make_engine, run_one):
    engine = make_engine(async_scheduling=True)
    first = run_one(engine, "a", prompt(5), max_tokens=4)
    assert run_one(engine, "b", [*first.tokens.tolist(), 7]).cached_tokens == 8


def test_a_request_preempted_with_a_pending_token_still_gets_it(make_engine, drive):
    engine = make_engine(num_blocks=7, async_scheduling=True)
    states = [engine.add(EngineRequest(name, prompt(9, 100 * i), 8), 0.0) for i, name in enumerate("ab")]
    results = drive(engine)
    assert [state.preemptions for state in states] == [0, 1]
    for name in "ab":
        tokens = [token for result in results for who, token, _ in result.outputs if who == name]
        assert tokens == list(range(1000, 1008))


def test_a_request_preempted_with_its_last_token_pending_ends_in_the_queue(make_engine, drive):
    engine = make_engine(num_blocks=5, async_scheduling=True)
    engine.add(EngineRequest("a", prompt(7), 9), 0.0)
    short = engine.add(EngineRequest("b", prompt(7, 100), 9, stop_after=2), 0.0)
    drive(engine)
    assert (short.preemptions, short.output_tokens, short.finish_reason) == (1, 2, "stop")
    assert engine.statistics()["waiting"] == 0


requests = st.lists(
    st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=30), st.integers(1, 12)), min_size=1, max_size=12
)


@given(requests, st.integers(1, 24))
def test_the_order_of_scheduling_changes_no_answer(make_engine, drive, work, budget):
    answers = []
    for ahead in (False, True):
        engine = make_engine(
            num_blocks=14,
            max_num_batched_tokens=budget,
            async_scheduling=ahead,
            sample=lambda state: state.tokens[-1] + state.output_tokens,
        )
        states = [engine.add(EngineRequest(str(i), *fields), 0.0) for i, fields in enumerate(work)]
        drive(engine)
        answers.append([state.tokens.tolist() for state in states])
        assert engine.statistics()["kv_usage"] == 0.0
    assert answers[0] == answers[1]
