import pytest

from backends.clock.device import Device


class Clock:
    def __init__(self):
        self.now_s = 100.0
        self.slept = []

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now_s += seconds


def test_a_step_takes_its_scaled_time():
    clock = Clock()
    device = Device(2.0, clock, clock.sleep)
    end_s = device.launch(0.5)
    device.wait(end_s)
    assert (end_s, clock.now_s) == (101.0, 101.0)


def test_a_step_launched_while_another_runs_follows_without_a_pause():
    clock = Clock()
    device = Device(1.0, clock, clock.sleep)
    first = device.launch(0.5)
    second = device.launch(0.25)
    device.wait(first)
    clock.now_s += 0.1  # the host is busy with the first one's tokens
    device.wait(second)
    assert second == 100.75 and clock.now_s == pytest.approx(100.75)


def test_an_idle_device_starts_at_once_and_late_results_do_not_wait():
    clock = Clock()
    device = Device(1.0, clock, clock.sleep)
    first = device.launch(0.5)
    clock.now_s = 110.0
    device.wait(first)
    assert clock.slept == [] and device.launch(0.5) == 110.5


def test_a_time_scale_of_zero_never_waits():
    clock = Clock()
    device = Device(0.0, clock, clock.sleep)
    device.wait(device.launch(5.0))
    assert clock.slept == []
