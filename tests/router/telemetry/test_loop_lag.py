import asyncio
import time

from router.telemetry.loop_lag import LoopLag


async def test_a_blocked_loop_is_measured():
    seen = []
    got = asyncio.Event()

    def observe(lag_s):
        seen.append(lag_s)
        got.set()

    lag = LoopLag(observe, interval_s=0.005)
    lag.start()
    await asyncio.wait_for(got.wait(), 5)
    before = len(seen)
    time.sleep(0.05)  # noqa: ASYNC251  (the blocked loop is what is measured)
    got.clear()
    await asyncio.wait_for(got.wait(), 5)
    assert max(seen[before:]) > 0.03
    assert lag.statistics()["samples"] == len(seen) and lag.statistics()["worst_s"] == max(seen)
    await lag.aclose()
    await lag.aclose()


async def test_close_without_start_does_nothing():
    await LoopLag(lambda lag_s: None).aclose()
