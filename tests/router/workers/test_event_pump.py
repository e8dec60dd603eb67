import asyncio
from types import SimpleNamespace

from router.workers import event_pump
from router.workers.event_pump import EventPump


async def iterate_until(pump, condition):
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("never came true")


async def test_an_iteration_is_bounded_and_fair(monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(event_pump, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    pump = EventPump(slice_s=0.002)
    left = {"a": 30, "b": 30}
    order = []

    def drain_of(name):
        def drain(deadline_s):
            while left[name] and now_s[0] < deadline_s:
                now_s[0] += 0.0005
                left[name] -= 1
                order.append(name)
            return left[name] > 0

        return drain

    first, second = drain_of("a"), drain_of("b")
    pump.wake(first)
    pump.wake(first)
    pump.wake(second)
    await iterate_until(pump, lambda: not any(left.values()))
    assert order[:12] == ["a"] * 4 + ["b"] * 4 + ["a"] * 4


async def test_other_callbacks_run_between_iterations():
    pump = EventPump(slice_s=0.0)
    seen = []
    left = [5]

    def drain(deadline_s):
        left[0] -= 1
        seen.append("events")
        asyncio.get_running_loop().call_soon(seen.append, "proxy")
        return left[0] > 0

    pump.wake(drain)
    await iterate_until(pump, lambda: seen.count("proxy") == 5)
    assert seen[:4] == ["events", "proxy", "events", "proxy"]


async def test_a_dropped_socket_is_not_drained():
    pump = EventPump()
    called, later = [], []
    pump.wake(called.append)
    pump.drop(called.append)
    pump.drop(called.append)
    pump.wake(later.append)
    await iterate_until(pump, lambda: later)
    assert called == []
