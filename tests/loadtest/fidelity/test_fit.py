import dataclasses

import pytest

from backends.engine.profile import load_profile
from loadtest.fidelity.fit import fit, training_error
from loadtest.fidelity.judgement import judge, training
from loadtest.fidelity.replay import replay

START = load_profile("qwen3-32b-2xh100")


def costs(profile):
    prefill, decode = profile.prefill, profile.decode
    return prefill.a_ms, prefill.b_us, decode.b_ms, decode.k_ns


def test_a_fit_finds_the_profile_that_made_the_recording(make_recording, profile):
    recording = make_recording()
    fitted = fit(recording, START, training(recording))
    assert fitted.prefill.a_ms == fitted.decode.a_ms
    assert costs(fitted) == pytest.approx(costs(profile), rel=0.1)
    judged = judge("made up", recording, fitted, async_scheduling=True)
    assert judged.part == "75 of 150, held out"
    assert max(abs(row.error) for row in judged.times) < 0.03
    assert judged.tpot_error < 0.02
    assert judged.failures == []


def test_a_fit_does_not_look_at_the_other_half(make_recording):
    recording = make_recording(count=20)
    kept = training(recording)
    spoilt = tuple(
        request if index in kept else dataclasses.replace(request, first_token_s=99.0, last_token_s=99.0)
        for index, request in enumerate(recording.requests)
    )
    assert fit(recording, START, kept) == fit(dataclasses.replace(recording, requests=spoilt), START, kept)


def test_scheduling_between_steps_does_not_explain_async_scheduling(make_recording):
    recording = make_recording(count=80)
    errors = []
    for ahead in (True, False):
        fitted = fit(recording, START, training(recording), async_scheduling=ahead)
        errors.append(judge("", recording, fitted, async_scheduling=ahead).ttft_error)
    assert errors[0] < 0.5 * errors[1]


def test_a_wrong_profile_is_judged_wrong(make_recording, profile):
    recording = make_recording()
    slow = dataclasses.replace(profile, decode=dataclasses.replace(profile.decode, a_ms=14.0))
    judged = judge("made up", recording, slow, async_scheduling=True)
    assert any("TPOT p50" in failure for failure in judged.failures)
    right, wrong = (training_error(recording, replay(recording, p), training(recording)) for p in (profile, slow))
    assert (right, wrong > 0.2) == (0.0, True)


def test_ranks_share_the_requests_and_none_is_left_idle(make_recording, profile):
    played = replay(make_recording(per_s=20.0, ranks=2), profile)
    assert {0, 1} == set(played.rank_of)
    assert 40 < sum(played.rank_of) < 110
    assert len(played.steps) == 2
    assert [state.id for state in played.states] == [f"r{number}" for number in range(150)]
