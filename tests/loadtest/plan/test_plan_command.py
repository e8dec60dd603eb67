import json
from dataclasses import replace
from unittest.mock import AsyncMock

import pytest

from backends.engine.profile import Fingerprint, load_profile
from router.cli.main import main
from tests.loadtest.plan.conftest import ALONE, UPLOADS
from tests.router.placement.test_decision_log import recorded

SMALL = (
    "--candidate",
    "llama-3.1-8b-a100:price=2",
    "--window-s",
    "15",
    "--warm-up-s",
    "5",
    "--seeds",
    "2",
    "--jobs",
    "1",
)
CLASSES = """\
classes:
  chat: {floor: 0.5, slo: {ttft: 0.5}}
  default: {share: 0}
"""
GOOD = ("--trace", ALONE, "--goodput", "ttft:1000", "--attainment", "0.8", *SMALL)


def planned(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["plan", *words]))
    return ended.value.code, capsys.readouterr()


def test_a_plan_is_printed_and_written(capsys, tmp_path):
    path = tmp_path / "plan.json"
    code, printed = planned(capsys, *GOOD, "--policy", "lpwl", "--json", str(path))
    plan = json.loads(path.read_text())
    (fleet,) = plan["fleets"]
    assert code == 0 and fleet["verdict"] == "met"
    assert plan["workers"] == fleet["workers"] > 1
    assert fleet["cost_per_day"] == fleet["workers"] * 48.0
    limits = {"ttft_ms": 1000.0, "tpot_ms": None, "e2el_ms": None}
    assert plan["goal"] == {**limits, "attainment_share": 0.8, "classes": {}}
    assert set(plan["workers_by_step_time_factor"]) == {"0.8", "1.0", "1.2"}
    assert fleet["attained_share_with_one_lost"] < 0.8 <= fleet["attained_share"]
    assert f"Take {fleet['workers']} x llama-3.1-8b-a100, lpwl for" in printed.out
    assert "seeds: met" in printed.err.replace("\n", " ")


def test_a_decision_log_is_traffic(capsys, tmp_path):
    (tmp_path / "decisions.jsonl").write_bytes(b"".join(recorded("round_robin")[0].lines))
    words = ("--goodput", "ttft:500", *SMALL, "--attainment", "0.8", "--policy", "lpwl", "--quick")
    code, printed = planned(capsys, "--log", str(tmp_path / "decisions.jsonl"), *words)
    assert code == 0 and "decisions.jsonl: 48 calls" in printed.out.replace("\n", "")


def test_a_calibrated_profile_is_a_candidate_and_says_what_it_was_made_on(capsys, tmp_path, monkeypatch):
    made, plan = tmp_path / "mine.toml", tmp_path / "plan.json"
    made_on = Fingerprint(gpu="NVIDIA H200", engine="vllm 0.33.0", date="2026-11-01")
    calibrated = replace(load_profile("llama-3.1-8b-a100"), fingerprint=made_on)
    monkeypatch.setattr("loadtest.calibrate.run.profile_of_worker", AsyncMock(return_value=calibrated))
    assert main(["calibrate", "http://127.0.0.1:9", "--out", str(made)]) == 0
    words = (*GOOD[:6], "--candidate", f"{made}:price=2", *SMALL[2:], "--policy", "lpwl", "--quick")
    code, printed = planned(capsys, *words, "--json", str(plan))
    assert code == 0
    assert "calibrated on: gpu NVIDIA H200, engine vllm 0.33.0, date 2026-11-01." in " ".join(printed.out.split())
    (profile,) = json.loads(plan.read_text())["profiles"]
    assert (profile["name"], profile["fingerprint"]["gpu"]) == (str(made), "NVIDIA H200")


def test_classes_are_those_of_the_settings(capsys, tmp_path):
    (tmp_path / "gateway.yaml").write_text(CLASSES)
    words = ("--trace", UPLOADS, "--classes", str(tmp_path / "gateway.yaml"), "--attainment", "0.8", *SMALL, "--quick")
    code, printed = planned(capsys, *words, "--policy", "lpwl", "--json", str(tmp_path / "plan.json"))
    plan = json.loads((tmp_path / "plan.json").read_text())
    (fleet,) = plan["fleets"]
    assert code == 0
    assert plan["goal"]["classes"] == {"chat": {"ttft_ms": 500.0, "tpot_ms": None, "e2el_ms": None}}
    assert fleet["classes"]["chat"]["verdict"] == "met" and fleet["classes"]["default"]["calls"] > 0
    assert "of class chat: TTFT at most 500 ms." in printed.out


def test_exit_codes_are_verdicts(capsys):
    quick = ("--policy", "lpwl", "--quick", "--max-workers", "2")
    code, printed = planned(capsys, *GOOD, *quick, "--goodput", "ttft:1")
    assert code == 1 and "No fleet of the first rule" in printed.out
    code, printed = planned(capsys, *GOOD, *quick, "--seeds", "1", "--attainment", "0.999", "--goodput", "ttft:60000")
    assert code == 2 and "undecided" in printed.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--trace", ALONE, *SMALL), "there is no service level"),
        ((*GOOD, "--classes", "nowhere.yaml"), "cannot read 'nowhere.yaml'"),
        (GOOD[2:], "one of the arguments --trace --log is required"),
        ((*GOOD, "--trace", "nowhere.jsonl"), "nowhere.jsonl"),
        ((*GOOD, "--log", "nowhere.jsonl"), "not allowed with argument"),
        ((*GOOD, "--goodput", "latency:5"), "--goodput latency:5: write NAME:MS"),
        ((*GOOD, "--goodput", "ttft:soon"), "'soon' is not a number above 0"),
        ((*GOOD, "--candidate", "b300"), "no profile 'b300'"),
        ((*GOOD, "--candidate", "llama-3.1-8b-h100"), "give a price to all candidates or to none"),
        ((*GOOD, "--candidate", "llama-3.1-8b-h100:gpus=2"), "neither price=P nor most=N"),
        ((*GOOD, "--policy", "fastest"), "fastest"),
        ((*GOOD, "--roles", "both"), "--roles 'both'"),
        ((*GOOD, "--attainment", "95"), "a share above 0 and below 1"),
        ((*GOOD, "--json", "/nowhere/plan.json", "--quick", "--policy", "lpwl"), "/nowhere"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_input_has_a_code_of_its_own(words, says, capsys):
    code, printed = planned(capsys, *words)
    assert code == 3 and says in printed.err
