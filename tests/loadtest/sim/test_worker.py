from array import array
from dataclasses import replace

import pytest

from backends.engine.engine import EngineRequest, FinishReason, HashedText, RequestRefused
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker


@pytest.fixture
def time():
    return VirtualTime()


@pytest.fixture
def make_worker(time, spec):
    def make(**options):
        return EngineWorker(time, "w", spec, seed=0, response_s=0.1, **options)

    return make


@pytest.fixture
def worker(make_worker):
    return make_worker()


def ask(worker, name, prompt, answer, follow=lambda tokens, end: None):
    return worker.submit(EngineRequest(name, array("I", prompt), len(answer)), array("I", answer), follow)


def test_tokens_arrive_after_their_step_and_the_way_back(time, make_worker):
    seen = []
    answer = ask(
        make_worker(every_step=True), "r", range(5), [7, 8, 9], lambda n, end: seen.append((time.now_s, n, end))
    )
    time.run()
    # 10 + 5 ms of prefill, then two decode steps of 2 ms; 100 ms on the way.
    assert [(round(at_s, 6), tokens, end) for at_s, tokens, end in seen] == [
        (0.115, 1, None),
        (0.117, 2, None),
        (0.119, 3, FinishReason.LENGTH),
    ]
    assert list(answer.state.tokens) == [0, 1, 2, 3, 4, 7, 8, 9], "it answered what it was given to answer"
    assert list(answer.times_s(3)) == [at_s for at_s, _, _ in seen]


def test_only_the_first_and_the_last_token_are_reported_by_themselves(time, worker):
    seen = []
    answer = ask(worker, "r", range(5), range(7, 13), lambda n, end: seen.append((round(time.now_s, 6), n, end)))
    time.at(0.1205, worker.catch_up)
    time.at(0.1206, worker.catch_up)
    time.run()
    assert seen == [(0.115, 1, None), (0.1205, 3, None), (0.125, 6, FinishReason.LENGTH)]
    assert [round(at_s, 6) for at_s in answer.times_s(6)] == [0.115, 0.117, 0.119, 0.121, 0.123, 0.125]
    assert list(answer.state.tokens) == [*range(5), *range(7, 13)]


def test_a_request_that_comes_amid_foreseen_steps_waits_for_the_end_of_its_step(time, worker):
    """Steps of 2 ms end at 17, 19, 21 ms ...; at 20 ms one is under way, and the next one takes 2 + 4."""
    first = ask(worker, "first", range(5), [7] * 20)
    asked = []
    time.at(0.020, lambda: asked.append(ask(worker, "second", range(100, 104), [8])))
    time.run()
    assert [round(at_s - 0.1, 6) for at_s in asked[0].times_s(1)] == [0.027]
    assert [round(at_s - 0.1, 6) for at_s in first.times_s(6)] == [0.015, 0.017, 0.019, 0.021, 0.027, 0.029]


def test_cache_events_leave_at_the_end_of_their_step(time, worker):
    seen = []
    worker.on_events.append(lambda events: seen.append((round(time.now_s, 6), [len(event.hashes) for event in events])))
    ask(worker, "r", range(9), [7])
    time.run()
    assert seen == [(0.019, [2])]


def test_an_aborted_request_reports_no_more_tokens(time, worker):
    seen = []
    ask(worker, "r", range(5), [7] * 20, lambda tokens, end: seen.append(tokens))
    time.at(0.020, worker.abort, "r")
    time.run()
    assert seen == [], "not even of the token that was on its way"
    assert worker.statistics()["finished_abort"] == 1
    assert worker.load().running == 0


def test_a_request_that_can_never_run_is_refused(worker):
    with pytest.raises(RequestRefused):
        ask(worker, "r", range(100), [7])


def test_load_counts_what_runs_and_waits(time, worker):
    for name in "ab":
        ask(worker, name, range(20), [7] * 4)
    load = worker.load()
    assert (load.running, load.waiting) == (1, 1), "the second came while the first one's step was under way"
    assert load.kv_usage == pytest.approx(5 / 8)


def test_a_request_in_hashes_hits_what_one_before_it_left(time, worker):
    chain = [11, 12, 13, 14]
    for number, tokens in enumerate((9, 13)):
        request = EngineRequest(f"r{number}", (), 4, hashed=HashedText(tokens, chain))
        answer = worker.submit(request, (), lambda tokens, end: None)
        time.run()
    assert answer.state.cached_tokens == 12, "the first one's answer filled the third block"
    assert (answer.state.output_tokens, answer.tokens, len(answer.state.tokens)) == (4, 4, 0)


def test_the_specs_options_reach_the_engine(time, spec):
    worker = EngineWorker(
        time, "w", replace(spec, profile=replace(spec.profile, max_num_batched_tokens=4), async_scheduling=True), seed=0
    )
    answer = ask(worker, "r", range(8), [7])
    time.run()
    assert list(answer.times_s(1)) == pytest.approx([2 * 0.014]), "two chunks, 10 ms + 4 tokens each"
    assert worker.engine.cached_tokens(answer.state.block_hashes, 9) == 8
