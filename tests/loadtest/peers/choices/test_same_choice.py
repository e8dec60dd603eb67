"""The real routers, in small; docs/results/same-choice.md has the whole."""

from pathlib import Path

import pytest

from loadtest.peers.choices.command import PAIRS, compare
from loadtest.peers.choices.sequence import Mix
from loadtest.peers.contenders import parse_contender

ENVIRONMENT = Path(__file__).parents[4] / ".venv-peers"
missing = [pair.contender for pair in PAIRS if parse_contender(pair.contender).version(ENVIRONMENT) is None]


@pytest.mark.slow
@pytest.mark.skipif(bool(missing), reason="sglang-router and vllm-router are not installed (`make peers-env`)")
def test_our_versions_of_their_rules_choose_as_they_do():
    pairs = [pair for pair in PAIRS if pair.known_by == "characters" or pair.rule == "lmetric"]
    found = compare(pairs, ENVIRONMENT, 3, Mix(steps=24, most_held=8, skew=5.0), 2)
    for pair in pairs:
        different = [step for step in found[pair.contender, pair.known_by] if not step.acceptable]
        assert not different, pair.contender
    same = [sum(step.same for step in steps) for steps in found.values()]
    assert min(same) > 12
