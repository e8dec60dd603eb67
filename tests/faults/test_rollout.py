"""Rolling restarts under load lose no request. The long run: ``python -m loadtest soak --scenario restarts``."""

import pytest

from loadtest.soak.load_client import BadAnswer, check_stream, check_whole
from loadtest.soak.restarts import Plan, restarts

pytestmark = pytest.mark.slow


@pytest.mark.timeout(300)
async def test_rolling_restarts_lose_no_request(tmp_path):
    said = []
    outcome = await restarts(Plan(gateway_restarts=10, worker_restarts=6, clients=8, logs=tmp_path), said.append)
    tally = outcome.tally
    assert tally.failures == []
    assert (outcome.gateway_restarts, outcome.worker_restarts, outcome.left) == (10, 6, 0)
    assert tally.requests > 200
    assert 0.3 < tally.streams / tally.requests < 0.7
    assert tally.closes >= 4  # clients with a kept connection were asked to close it; none was cut off
    assert said


def test_what_counts_as_whole():
    whole = b'{"choices": [{"finish_reason": "length"}], "usage": {"completion_tokens": 4}}'
    check_whole(whole, 4)
    for bad in (whole[:-1], whole.replace(b"length", b"abort"), whole.replace(b"4", b"3"), b"{}", b"[]"):
        with pytest.raises(BadAnswer):
            check_whole(bad, 4)
    stream = b'data: {"choices": [{"finish_reason": "length"}]}\n\ndata: [DONE]\n\n'
    check_stream(stream, 4)
    for bad in (stream[:-2], stream.replace(b"length", b"abort"), b"data: [DONE]\n\n"):
        with pytest.raises(BadAnswer):
            check_stream(bad, 4)
