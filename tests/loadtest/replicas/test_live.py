"""One case on real processes, in small."""

import pytest

from loadtest.replicas.cases import Case
from loadtest.replicas.live import play_case
from loadtest.workload.conversations import Shape
from tests.support.redis import needs_redis


@needs_redis
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_gateways_over_redis_answer_every_request():
    shape = Shape(conversations=4, turns=2, starts_per_s=4.0, pause_s=0.2, document_chars=(8_000, 9_000))
    found = play_case(Case(2, True, True), shape, 0)
    assert (found.requests, found.failed) == (8, 0)
    assert 0.0 < found.cached < 1.0
    assert found.imbalance >= 1.0 and found.ttft_mean_ms > 0.0
