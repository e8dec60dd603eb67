from types import SimpleNamespace

import msgspec
import pytest

from backends.worker import LoadReport
from router.config.model import DiagnosisConfig
from router.diagnosis.diagnose import diagnose, levels_of
from router.diagnosis.in_force import InForce
from router.diagnosis.measured import Measured, Moved, TurnMeasured, WorkerMeasured, over_processes, over_time
from router.diagnosis.measurements import Measurements

WORKER = SimpleNamespace(id="a:1")


def report(**fields):
    return LoadReport(0, fields.pop("running", 4), 0, fields.pop("kv_usage", 0.5), **fields)


def test_the_window_slides_by_minutes():
    measurements = Measurements(window_s=120.0)
    for minute in range(5):
        measurements.load_reported(WORKER, report(running=minute), 60.0 * minute + 1)
    measured = measurements.measured(241.0)
    assert (measured.workers["a:1"].reports, measured.workers["a:1"].running) == (2, 3 + 4)
    assert measured.seconds == pytest.approx(60.0)
    assert len(measurements._minutes) == 3
    assert measurements.measured(1_000.0).workers == {}


def test_preemptions_are_differences_of_a_counter():
    measurements = Measurements()
    for at_s, preemptions in enumerate((100, 103, None, 103, 110, 2, 4)):
        measurements.load_reported(WORKER, report(preemptions=preemptions), float(at_s))
    assert measurements.measured(10.0).workers["a:1"].preemptions == 3 + 7 + 2


def test_a_worker_that_is_gone_begins_again():
    measurements = Measurements()
    measurements.load_reported(WORKER, report(preemptions=5), 1.0)
    for minute in range(1, 4):
        measurements.load_reported(SimpleNamespace(id="b:1"), report(), 60.0 * minute)
    measurements.load_reported(WORKER, report(preemptions=9), 200.0)
    assert measurements.measured(200.0).workers["a:1"].preemptions == 0


def one_process():
    measured = Measured(seconds=60.0, stayed=3, moved={Moved.COST: 2}, levels={("chat", "ttft"): [8, 2]})
    measured.workers["a:1"] = WorkerMeasured(reports=10, kv_usage=5.0, preemptions=4)
    measured.turns[0] = TurnMeasured(requests=5, prompt_tokens=100)
    measured.prompts[2].requests = 7
    return measured


def test_processes_add_up_but_for_what_all_of_them_read():
    merged = over_processes([one_process(), one_process(), Measured()])
    assert (merged.seconds, merged.stayed, merged.moved, merged.requests) == (60.0, 6, {Moved.COST: 4}, 14)
    assert merged.levels == {("chat", "ttft"): [16, 4]}
    assert (merged.workers["a:1"].reports, merged.workers["a:1"].preemptions) == (20, 4)
    assert merged.turns[0].prompt_tokens == 200
    assert over_time([one_process(), one_process()]).workers["a:1"].preemptions == 8


def test_a_sum_leaves_its_parts_alone():
    part = one_process()
    over_time([part, part])
    assert part == one_process()


def test_measured_traffic_travels_as_msgpack():
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(one_process()), type=Measured) == one_process()


def test_service_levels_count_within_the_window():
    counted = {("chat", "ttft", "true"): 100.0, ("chat", "ttft", "false"): 0.0}
    measurements = Measurements(lambda: levels_of(counted))
    measurements.load_reported(WORKER, report(), 1.0)
    counted[("chat", "ttft", "true")] += 40
    counted[("chat", "ttft", "false")] += 20
    counted[("chat", "tpot", "true")] = 3.0
    levels = diagnose(measurements.measured(2.0), DiagnosisConfig(), InForce()).service_levels
    assert [(one.route, one.target, one.met, one.missed, one.out) for one in levels] == [
        ("chat", "tpot", 3, 0, False),
        ("chat", "ttft", 40, 20, True),
    ]
