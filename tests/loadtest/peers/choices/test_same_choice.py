"""The real routers, in small; docs/results/peers.md has the whole."""

from pathlib import Path

import pytest

from loadtest.peers.choices.command import PAIRS, compare
from loadtest.peers.choices.sequence import Mix
from loadtest.peers.contenders import parse_contender

ENVIRONMENT = Path(__file__).parents[4] / ".venv-peers"
missing = [pair.contender for pair in PAIRS if parse_contender(pair.contender).version(ENVIRONMENT) is None]


@pytest.mark.slow
@pytest.mark.timeout(300)  # starts six processes three times
@pytest.mark.skipif(bool(missing), reason="sglang-router and vllm-router are not installed (`make peers-env`)")
def test_our_versions_of_their_rules_choose_as_they_do():
    pairs = [pair for pair in PAIRS if pair.known_by == "characters" or pair.rule == "lmetric"]
    found = compare(pairs, ENVIRONMENT, 3, Mix(steps=20, most_held=8), 2)
    for pair, steps in zip(pairs, found, strict=True):
        assert not [step for step in steps if not step.acceptable], pair.contender
        assert sum(step.same for step in steps) > 10
