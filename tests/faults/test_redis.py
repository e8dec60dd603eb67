"""Two gateways serve through faults of the Redis that they share, and heal. Their workers are registered there, too."""

import pytest

from tests.support.redis import needs_redis
from tests.support.redis_faults import FAULTS, GATEWAYS, play

SHARED_S = 5.0
REGISTERED_S = 15.0

pytestmark = [pytest.mark.slow, needs_redis, pytest.mark.timeout(240)]


# The failover has all that the stop has, and each takes half a minute.
@pytest.mark.parametrize("fault", [pytest.param(FAULTS[0], marks=pytest.mark.nightly), *FAULTS[1:]])
def test_no_request_fails_and_the_gateways_heal(fault):
    healing = play(fault)
    assert healing.failures == ()
    assert healing.requests > 20
    assert healing.alone == GATEWAYS
    assert healing.shared_s < SHARED_S
    assert healing.registered_s < REGISTERED_S
