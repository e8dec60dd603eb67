import json
from dataclasses import replace

from loadtest.approximate.workloads import DRIFT, LONG_TAIL, SHARED_PROMPTS, conversations, workloads


def test_equal_seeds_draw_equal_sessions():
    assert conversations(DRIFT, 4, 1) == conversations(DRIFT, 4, 1)
    assert conversations(DRIFT, 4, 1) != conversations(DRIFT, 4, 2)


def test_the_issue_s_mix_has_its_shape():
    sessions = conversations(SHARED_PROMPTS, 4, 0)
    assert len(sessions) == 48 and all(len(session.calls) == 4 for session in sessions)
    assert len({session.calls[0].prompt_ids[:4_400].tobytes() for session in sessions}) == 12


def test_each_turn_goes_on_from_the_answer_before():
    for session in conversations(LONG_TAIL, 4, 0)[:20]:
        for before, after in zip(session.calls, session.calls[1:], strict=False):
            said = before.prompt_ids + before.output_ids
            assert after.prompt_ids[: len(said)] == said


def test_an_answer_nobody_waited_for_is_not_in_the_next_prompt():
    shape = replace(DRIFT, leaving_share=1.0, turns=(2, 2))
    for session in conversations(shape, 4, 0)[:20]:
        first, second = session.calls
        assert first.leaves_after_s is not None
        assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
        assert first.output_ids[0] not in second.prompt_ids


def test_some_pass_the_gateway_by():
    direct = [session.direct for session in conversations(DRIFT, 4, 0) if session.direct is not None]
    assert 20 < len(direct) < 80 and set(direct) == {0, 1, 2, 3}


def test_the_long_tail_is_two_to_four_times_all_caches():
    (workload,) = [one for one in workloads(None) if one.name == "long-tail"]
    prefixes = {session.calls[0].prompt_ids[:2_000].tobytes() for session in workload.sessions(0)}
    assert len(prefixes) > 100
    assert 2.0 <= 160 * 5_000 / (4 * workload.cache_tokens) <= 4.0


def test_a_trace_is_one_more_and_seeds_take_turns_with_its_parts(tmp_path):
    path = tmp_path / "trace.jsonl"
    rows = [{"timestamp": n * 1_000, "input_length": 600, "output_length": 3, "hash_ids": [0, n]} for n in range(20)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    assert [one.name for one in workloads(None)] == ["shared-prompts", "long-tail", "drift"]
    (trace,) = [one for one in workloads(path, 10) if one.name == "trace"]
    first, second, third = (trace.sessions(seed) for seed in range(3))
    assert len(first) == len(second) == 10
    starts = [{session.calls[0].prompt_ids[-1] for session in part} for part in (first, second, third)]
    assert starts[0] == set(range(10)) and starts[1] == set(range(10, 20)) and starts[2] == starts[0]
    assert third != first, "the same rows, spread otherwise"
