import argparse
import re
from dataclasses import fields
from pathlib import Path

import pytest

from loadtest.compare import command as compare
from loadtest.lab.cell import Slo
from loadtest.lab.flags import problem, setting
from loadtest.lab.models import Models
from loadtest.tournament import sim as command

RIGHT = {
    "--trace": "generator:multi_turn",
    "--policy": "lpwl,random",
    "--workers": "2",
    "--profile": "llama-3.1-8b-h100",
    "--load": "0.9,0.3",
    "--slo": "2000:100",
    "--out": "somewhere",
}


def parsed(*more, **changed):
    parser = argparse.ArgumentParser()
    command.register(parser)
    right = RIGHT | {f"--{name}": value for name, value in changed.items()}
    return parser.parse_args([word for pair in right.items() for word in pair] + list(more))


def test_a_flag_not_given_has_the_models_default_and_every_model_has_a_flag():
    args = parsed(policy="cache_aware:balance_abs_threshold=3,lpwl,lpwl")
    assert setting(args).models == Models()
    assert setting(args).slo == Slo(2000.0, 100.0)
    assert (args.load, args.seeds, args.first_seed) == ([0.3, 0.9], 10, 0)
    assert args.policy == ["cache_aware:balance_abs_threshold=3", "lpwl"]
    given = ("--speed-spread", "0.5", "--no-async-scheduling", "--chunk-tokens", "512")
    assert setting(parsed(*given)).models == Models(speed_spread=0.5, async_scheduling=False, chunk_tokens=512)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--warm-up-s", "1200"), "--warm-up-s 1200 leaves nothing of --window-s 1200"),
        (("--slo", "300000:100"), "--slo: clients leave after 300 s, so no load would ever miss a TTFT of 300000 ms"),
    ],
    ids=str,
)
def test_flags_that_do_not_go_together_are_named(given, says):
    assert problem(parsed()) is None
    assert says in problem(parsed(*given))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"policy": "lpwl,nonsense"}, "--policy: policy 'nonsense'"),
        ({"policy": "lpwl:speed=1"}, "--policy: policy 'lpwl', parameter 'speed'"),
        ({"policy": "lpwl:speed"}, "write lpwl:speed=VALUE"),
        ({"policy": ","}, "--policy: names no rule"),
        ({"slo": "2000"}, "--slo: '2000' is not TTFT_MS:TPOT_MS; write two times, as in 2000:100"),
        ({"slo": "0:100"}, "--slo"),
        ({"load": "0.5,much"}, "--load: 'much' is not a number above 0; write fractions"),
        ({"first-seed": "-1"}, "--first-seed: '-1' is not a whole number, 0 or above"),
        ({"workers": "0"}, "--workers: '0' is not a whole number above 0"),
        ({"profile": "h100"}, "--profile: no profile"),
        ({"jitter": "1"}, "--jitter: '1' is not a part of 1; write a number from 0 to below 1"),
        ({"warm-up-s": "soon"}, "--warm-up-s: 'soon' is not a time; write seconds, 0 or more"),
    ],
    ids=str,
)
def test_a_wrong_value_is_named_with_its_flag(changed, says, capsys):
    with pytest.raises(SystemExit) as ended:
        parsed(**changed)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err.replace("\n", " ")


def options(module):
    parser = argparse.ArgumentParser()
    module.register(parser)
    return {option for action in parser._actions for option in action.option_strings}


def test_the_guide_names_every_model_and_no_flag_that_there_is_not():
    page = Path(__file__).parents[3] / "docs/how-to/judge-a-policy.md"
    named = set(re.findall(r"--[a-z][a-z-]*[a-z]", page.read_text()))
    there = options(command) | options(compare)  # the guide's last section is about `loadtest compare`
    assert named <= there
    assert {"--" + one.name.replace("_", "-") for one in fields(Models)} <= named
