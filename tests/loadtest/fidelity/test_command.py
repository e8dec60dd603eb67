import argparse
import json

import pytest

from backends.engine.profile import load_profile
from loadtest.fidelity import command, judgement
from loadtest.fidelity.run import server_to_compare


def run(*flags):
    parser = argparse.ArgumentParser()
    command.register(parser)
    return command.run(parser.parse_args([*flags]))


@pytest.mark.parametrize("flags", [["--time-scale", "0"], ["--cache-tokens", "-1"], ["--scenario", "none"]])
def test_flags_that_make_no_sense_are_refused(flags):
    with pytest.raises(SystemExit) as refused:
        run(*flags)
    assert refused.value.code == 2


def test_without_vllm_the_error_says_how_to_get_one(tmp_path, capsys):
    assert run("--only", "served", "--vllm-env", str(tmp_path)) == 1
    assert "make vllm-env" in capsys.readouterr().err


def test_without_recordings_the_second_part_is_skipped_and_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run("--only", "recorded") == 0
    assert "skipped" in capsys.readouterr().out


def test_a_named_folder_without_recordings_is_an_error(tmp_path, capsys):
    assert run("--only", "recorded", "--recorded", str(tmp_path)) == 1
    assert "holds no recordings" in capsys.readouterr().err


def test_recordings_are_refitted_judged_and_written(tmp_path, monkeypatch, capsys, make_recording):
    (tmp_path / "llmservingsim_vllm_x.meta.json").write_text("{}")
    monkeypatch.setattr(judgement, "read_recording", lambda folder, name: make_recording(count=40))
    out = tmp_path / "fidelity.json"
    flags = ["--only", "recorded", "--recorded", str(tmp_path), "--refit", "--json", str(out)]
    assert run(*flags) in (0, 1)
    printed = capsys.readouterr().out
    assert "x, async" in printed and "x, sync" in printed and "k_ns" in printed
    rows = json.loads(out.read_text())["recorded"]
    assert [(row["name"], row["async_scheduling"]) for row in rows] == [("x", True), ("x", False)]
    assert rows[0]["tpot_error"] < rows[1]["tpot_error"]


def test_the_packaged_profiles_are_those_of_the_recorded_models():
    for model, name in judgement.PROFILES.items():
        assert load_profile(name).model == model


@pytest.mark.parametrize("ahead", [True, False])
def test_the_server_gets_the_models_settings_as_flags(tmp_path, profile, ahead):
    worker = server_to_compare(tmp_path, profile, 65_536, 4.0, async_scheduling=ahead)
    flags = " ".join(worker.flags)
    assert "--max-num-batched-tokens 8192 --max-num-seqs 256 --max-model-len 32768" in flags
    assert ("--no-async-scheduling" in flags) is not ahead
    assert (worker.clock.kv_gib, worker.clock.time_scale, worker.clock.jitter) == (0.0625, 4.0, 0.0)
