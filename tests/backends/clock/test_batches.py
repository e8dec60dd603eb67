"""Steps read from vLLM's scheduler output, compared with the work of a GPU worker."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.clock.batches import Batches, allowed_tokens


def scheduled(new=(), cached=(), finished=()):
    """Return a scheduler output. `new` has (id, prompt, computed, now) and `cached` (id, computed, outputs, now) per
    request.
    """
    counts = {request[0]: request[-1] for request in (*new, *cached)}
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=id_, prompt_token_ids=prompt, num_computed_tokens=computed)
            for id_, prompt, computed, _ in new
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[request[0] for request in cached],
            num_computed_tokens=[request[1] for request in cached],
            num_output_tokens=[request[2] for request in cached],
        ),
        num_scheduled_tokens=counts,
        total_num_scheduled_tokens=sum(counts.values()),
        finished_req_ids=set(finished),
    )


def test_a_prompt_in_one_step_gets_its_first_token():
    step = Batches().step(scheduled(new=[("a", [5] * 100, 32, 68)]))
    assert (step.chunks, step.decodes, step.producers) == ([(68, 32)], 0, {"a"})


def test_a_chunked_prompt_gets_none_before_its_last_chunk():
    batches = Batches()
    assert batches.step(scheduled(new=[("a", [5] * 100, 0, 60)])).producers == set()
    last = batches.step(scheduled(cached=[("a", 60, 0, 40)]))
    assert (last.chunks, last.producers) == ([(40, 60)], {"a"})


def test_a_one_token_rest_of_a_prompt_is_prefill_not_decode():
    batches = Batches()
    batches.step(scheduled(new=[("a", [5] * 101, 0, 100)]))
    step = batches.step(scheduled(cached=[("a", 100, 0, 1)]))
    assert (step.chunks, step.decodes, step.producers) == ([(1, 100)], 0, {"a"})


def test_decodes_and_a_prefill_share_a_step():
    batches = Batches()
    batches.step(scheduled(new=[("a", [1] * 10, 0, 10), ("b", [2] * 20, 0, 20)]))
    step = batches.step(scheduled(new=[("c", [3] * 50, 0, 50)], cached=[("a", 10, 1, 1), ("b", 20, 1, 1)]))
    assert step.chunks == [(50, 0)] and step.decodes == 2 and step.decode_context_tokens == 11 + 21
    assert step.producers == {"a", "b", "c"} and step.request_ids == ["c", "a", "b"]


def test_a_preempted_request_computes_its_answer_again_before_it_goes_on():
    batches = Batches()
    batches.step(scheduled(new=[("a", [1] * 10, 0, 10)]))
    batches.step(scheduled(cached=[("a", 10, 1, 1)]))
    again = batches.step(scheduled(cached=[("a", 0, 2, 8)]))
    assert (again.chunks, again.producers) == ([(8, 0)], set())
    assert batches.step(scheduled(cached=[("a", 8, 2, 4)])).producers == {"a"}


def test_a_request_sent_again_as_new_keeps_its_answer():
    output = scheduled(new=[("a", [1] * 10, 0, 12)])
    output.scheduled_new_reqs[0].prefill_token_ids = [1] * 10 + [7, 8]
    batches = Batches()
    assert batches.step(output).producers == {"a"}
    known = batches.known("a")
    assert (known.prompt_tokens, known.last_token, known.answered) == (10, 8, True)


def test_finished_requests_are_forgotten():
    batches = Batches()
    batches.step(scheduled(new=[("a", [1] * 10, 0, 10)]))
    batches.step(scheduled(finished=["a", "never seen"]))
    assert not batches._requests
    with pytest.raises(KeyError):
        batches.known("a")


@given(st.sets(st.integers(0, 199)))
def test_a_bitmask_row_reads_as_the_set_it_was_made_from(ids):
    words = [0] * 7
    for token in ids:
        words[token // 32] |= 1 << (token % 32)
    signed = [word - (1 << 32) if word >= 1 << 31 else word for word in words]
    assert allowed_tokens(signed) == sorted(ids)
