import gzip
import json

import pytest

from router.cli.main import main
from tests.router.placement.test_decision_log import recorded


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "decisions.jsonl.gz"
    sink, _ = recorded("round_robin")
    path.write_bytes(gzip.compress(b"".join(sink.lines)))
    return path


def test_the_policies_of_the_log_decide_the_same(log, capsys):
    assert main(["replay", str(log)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("48 decisions, 48 the same with the policies of the log (100.0%)\n")
    assert "mean predicted TTFT" in printed


def test_another_rule_lists_the_first_differences(log, capsys):
    assert main(["replay", str(log), "--policy", "lpwl", "--show", "3"]) == 0
    printed = capsys.readouterr().out
    assert "the same with lpwl" in printed
    assert printed.splitlines()[-1].startswith("r")
    assert len(printed.splitlines()) == 11


def test_wrappers_and_parameters_reach_the_rule(log, capsys):
    command = ["replay", str(log), "--policy", "marginal_cost", "--params", '{"stream_weight": 0}', "--no-hold"]
    assert main([*command, "--no-lanes", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["decisions"] == 48
    assert document["replayed"]["held"] == 0
    assert main(["replay", str(log), "--policy", "marginal_cost", "--params", '{"weight": 0}']) == 2
    assert "weight" in capsys.readouterr().err


def test_a_file_that_a_killed_process_left_is_read_to_its_last_whole_line(log, tmp_path, capsys):
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(log.read_bytes()[:-500])
    assert main(["replay", str(cut)]) == 0
    assert "(100.0%)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (["--policy", "lpwn"], 2, "no such policy"),
        (["--policy", "lpwl", "--params", "x"], 2, "write a JSON object"),
        (["--policy", "lpwl", "--params", "[1]"], 2, "write a JSON object"),
    ],
)
def test_a_wrong_option_is_named(log, capsys, flags, code, text):
    assert main(["replay", str(log), *flags]) == code
    assert text in capsys.readouterr().err


def test_a_file_that_is_no_log_is_named(tmp_path, capsys):
    other = tmp_path / "other.txt"
    other.write_text("hello\n")
    assert main(["replay", str(other)]) == 1
    assert "line 1" in capsys.readouterr().err
    assert main(["replay", str(tmp_path / "none")]) == 1
    assert "none" in capsys.readouterr().err
