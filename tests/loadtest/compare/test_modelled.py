from dataclasses import replace

import pytest
from msgspec import structs

from backends.engine.profile import load_profile
from backends.engine.timing import StepTiming
from loadtest.compare.modelled import asked, play, saturates, slowed


def test_a_stretched_profile_stretches_every_step():
    profile = load_profile("llama-3.1-70b-4xh100")
    for chunks, decodes, context in ([(4_000, 100)], 0, 0), ([], 7, 9_000), ([(64, 0)], 3, 500):
        once, thrice = (
            StepTiming(one, None).step_s(chunks, decodes, context) for one in (profile, slowed(profile, 3.0))
        )
        assert thrice == pytest.approx(3.0 * once)


def test_clients_ask_for_as_many_tokens_as_they_get(cell):
    found = asked(cell)
    calls = [call for session in found.plan.sessions for call in session.calls]
    assert calls and all(call.max_tokens == call.answer[1] for call in calls)
    assert {f"{session.id}/{number}" for session in found.plan.sessions for number, _ in enumerate(session.calls)} <= (
        set(found.asked)
    )


def test_slower_workers_answer_later_and_equal_cells_alike(cell):
    once, slow = play(cell, 1.0), play(cell, 2.0)
    assert slow.all.tpot_mean_ms > 1.8 * once.all.tpot_mean_ms
    assert slow.all.ttft_mean_ms > once.all.ttft_mean_ms
    assert play(cell, 2.0) == slow


def test_load_one_is_found_on_the_stretched_fleet(cell, monkeypatch):
    like = play(replace(cell, rate=0.5), 1.0)

    def played(one, time_scale):
        figures = structs.replace(like.all, ttft_p90_ms=100.0 * one.rate * time_scale)
        return structs.replace(like, all=figures)

    monkeypatch.setattr("loadtest.compare.modelled.play", played)
    assert cell.setting.slo.ttft_ms == 200.0
    assert saturates(cell, 1.0).rate == pytest.approx(2.0, rel=0.02)
    assert saturates(cell, 4.0).rate == pytest.approx(0.5, rel=0.02)
