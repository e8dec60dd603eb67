"""Behind Envoy the picker finds as many cached prefixes as the HTTP gateway does, on the same conversations."""

from pathlib import Path
from statistics import mean

import pytest
import uvloop

from loadtest.fleet.embedded import behind_envoy, running
from loadtest.load.conversations import play
from loadtest.report.summary import summarise
from loadtest.workload.conversations import Shape, generate

ENVOY = Path(__file__).parents[2] / ".venv-envoy" / "bin" / "envoy"
SEEDS, WORKERS, POLICY = (1, 2), 4, "marginal_cost"
FLAGS = ("--profile", "llama-3.1-8b-h100", "--time-scale", "3")
WITHIN = 0.01

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.measures,
    pytest.mark.skipif(not ENVOY.exists(), reason="Envoy is not installed: run `make envoy-env`"),
]


def share_of(url, model, seed):
    seen = uvloop.run(play(url, model, generate(Shape(), seed), lambda _: None))
    row = summarise("", seen)
    assert not row.errors
    return row.cached_share


def at_the_gateway(seed):
    with running(WORKERS, POLICY, FLAGS) as fleet:
        return share_of(fleet.public_url, fleet.wait_until_ready(), seed)


def behind(seed):
    with behind_envoy(WORKERS, POLICY, ENVOY, FLAGS, ["--set=picker.learn=all"], learns=True) as (url, model):
        return share_of(url, model, seed)


@pytest.mark.timeout(600)
def test_the_cached_share_is_that_of_the_gateway():
    shares = [(at_the_gateway(seed), behind(seed)) for seed in SEEDS]
    print(", ".join(f"{gateway:.3f} at the gateway, {envoy:.3f} behind Envoy" for gateway, envoy in shares))
    ours, theirs = (mean(each) for each in zip(*shares, strict=True))
    assert abs(ours - theirs) <= WITHIN
