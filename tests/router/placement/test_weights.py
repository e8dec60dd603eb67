import random

import pytest

from tests.router.placement.conftest import VirtualFleet


def unrelated(count, rate, seed=1):
    rng = random.Random(seed)
    at_s = 0.0
    for _ in range(count):
        at_s += rng.expovariate(rate)
        yield at_s, [rng.randrange(30_000) for _ in range(rng.randint(200, 2_000))], rng.randint(20, 150)


def ratio(rule, rate):
    fleet = VirtualFleet(rule, workers=2)
    one, other = (endpoint.id for endpoint in fleet.fleet.endpoints)
    fleet.fleet.describe(other, {}, 0.5, None, "mixed")
    shares = fleet.run(unrelated(400, rate)).shares
    return shares[other] / shares[one]


IDLE, STEADY, BUSY = 0.3, pytest.param(3.0, marks=pytest.mark.nightly), 8.0


@pytest.mark.parametrize("rate", [BUSY])
def test_round_robin_gives_half_the_weight_half_as_many_requests(rate):
    assert ratio("round_robin", rate) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("rate", [IDLE, STEADY, BUSY])
def test_marginal_cost_gives_half_the_weight_about_half_as_many_requests(rate):
    assert 0.4 < ratio("marginal_cost", rate) < 0.75
