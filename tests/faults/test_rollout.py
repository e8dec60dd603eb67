"""Rolling restarts under load lose no request. The long run: ``python -m loadtest soak --scenario restarts``."""

import pytest
from rich.console import Console

from loadtest.soak.fleet import FleetShape
from loadtest.soak.run import Setting, soak

pytestmark = pytest.mark.slow


@pytest.mark.timeout(300)
def test_rolling_restarts_lose_no_request(tmp_path):
    fleet = FleetShape(workers=3, time_scale=1.0, logs=tmp_path)
    verdict = soak(Setting(0.0, fleet, restarts=12, clients=8), Console(quiet=True))
    assert verdict.failures == [] == verdict.unexplained
    assert verdict.faults == {"gateway_restart": 6, "worker_restart": 6}
    assert verdict.outcomes == {"complete": verdict.requests} and verdict.requests > 200
