import pytest

from loadtest.sim.virtual_time import VirtualTime


def test_events_come_in_order_of_time_and_then_of_asking_and_may_bring_more():
    time, seen = VirtualTime(), []
    time.at(1.0, lambda: time.after(0.0, seen.append, "brought"))
    for at_s, name in ((2.0, "late"), (1.0, "first"), (1.0, "second")):
        time.at(at_s, seen.append, name)
    time.run()
    assert seen == ["first", "second", "brought", "late"] and not time.pending


def test_a_run_may_stop_before_the_end():
    time, seen = VirtualTime(), []
    time.at(1.0, seen.append, 1)
    time.at(3.0, seen.append, 3)
    time.run(until_s=2.0)
    assert (seen, time.pending, time.now_s) == ([1], 1, 1.0)
    time.run()
    assert seen == [1, 3]


def test_the_past_is_refused():
    time = VirtualTime()
    time.at(1.0, lambda: None)
    time.run()
    with pytest.raises(ValueError, match="has passed"):
        time.at(0.5, lambda: None)
