from dataclasses import replace

from tests.support.simulated_conversations import LONG_TAIL, conversations

DRIFT = replace(LONG_TAIL, sessions=200, direct_share=0.25, leaving_share=0.15)


def test_equal_seeds_draw_equal_sessions():
    assert conversations(DRIFT, 4, 1) == conversations(DRIFT, 4, 1)
    assert conversations(DRIFT, 4, 1) != conversations(DRIFT, 4, 2)


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
