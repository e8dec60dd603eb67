import argparse
import dataclasses

import pytest

from backends.engine.profile import load_profile
from loadtest.calibrate.recordings import command
from loadtest.calibrate.recordings.fit import fit, training_error
from loadtest.calibrate.recordings.replay import replay

START = load_profile("qwen3-32b-2xh100")


def costs(profile):
    prefill, decode = profile.prefill, profile.decode
    return prefill.a_ms, prefill.b_us, decode.b_ms, decode.k_ns


def training(recording):
    return range(0, len(recording.requests), 2)


def test_a_fit_finds_the_profile_that_made_the_recording(make_recording, profile):
    recording = make_recording()
    fitted = fit(recording, START, training(recording))
    assert fitted.prefill.a_ms == fitted.decode.a_ms
    assert costs(fitted) == pytest.approx(costs(profile), rel=0.1)


def test_a_fit_does_not_look_at_the_other_half(make_recording):
    recording = make_recording(count=20)
    kept = training(recording)
    spoilt = tuple(
        request if index in kept else dataclasses.replace(request, first_token_s=99.0, last_token_s=99.0)
        for index, request in enumerate(recording.requests)
    )
    assert fit(recording, START, kept) == fit(dataclasses.replace(recording, requests=spoilt), START, kept)


def test_a_wrong_profile_has_an_error(make_recording, profile):
    recording = make_recording()
    slow = dataclasses.replace(profile, decode=dataclasses.replace(profile.decode, a_ms=14.0))
    right, wrong = (training_error(recording, replay(recording, p), training(recording)) for p in (profile, slow))
    assert (right, wrong > 0.2) == (0.0, True)


def test_the_command_prints_costs_and_the_errors_of_the_other_half(make_recording, monkeypatch, capsys, profile):
    monkeypatch.setattr(command, "read_recording", lambda path: make_recording(count=40))
    parser = argparse.ArgumentParser()
    command.register(parser)
    assert command.run(parser.parse_args(["x.meta.json"])) == 0
    printed = capsys.readouterr().out
    assert "[decode]\na_ms = 9." in printed
    assert "TPOT p90 of 20 requests" in printed


def test_a_recording_that_is_not_there_is_an_error(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    command.register(parser)
    assert command.run(parser.parse_args([str(tmp_path / "none.meta.json")])) == 1
    assert "none.requests.jsonl.zst" in capsys.readouterr().err
