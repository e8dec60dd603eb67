import time

from router.metrics.instruments import Distribution
from router.telemetry.loop_lag import LoopLag
from tests.support.waiting import eventually


async def test_a_blocked_loop_is_measured():
    lags = Distribution((0.03,))
    lag = LoopLag(lags, interval_s=0.005)
    lag.start()
    await eventually(lambda: lags.counts[0] > 0)
    time.sleep(0.05)  # noqa: ASYNC251  (the blocked loop is what is measured)
    await eventually(lambda: lags.counts[1] > 0)
    assert lags.total > 0.03
    await lag.aclose()
    await lag.aclose()


async def test_close_without_start_does_nothing():
    await LoopLag(Distribution(())).aclose()
