import json

import pytest

from backends.engine.profile import load_profile
from loadtest.plan.traffic import traffic, work_s
from loadtest.workload.errors import WorkloadError
from loadtest.workload.trace import Trace

PROFILE = load_profile("llama-3.1-8b-h100")


def day(path, calls_by_minute, prompt_tokens=1_000):
    rows = [
        {"timestamp": (60 * minute + 60 * at / count) * 1e3, "input_length": prompt_tokens, "output_length": 10,
         "hash_ids": [number * 10 + one for one in range(2)]}
        for minute, count in enumerate(calls_by_minute)
        for number, at in enumerate(range(count))
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def planned(path, folder, window_s=300.0, warm_up_s=120.0):
    folder.mkdir(exist_ok=True)
    return traffic(str(path), PROFILE, window_s, warm_up_s, folder)


def test_the_busiest_window_and_its_hour_are_cut_out_with_their_warm_up(tmp_path):
    counts = [2] * 60 + [4] * 60 + [2] * 60
    counts[100:105] = [9] * 5
    day(tmp_path / "day.jsonl", counts)
    found = planned(tmp_path / "day.jsonl", tmp_path / "pieces")
    busiest, peak = found.busiest, found.peak
    assert (busiest.start_s, busiest.length_s, busiest.warm_up_s, busiest.calls) == (6_000.0, 300.0, 120.0, 45)
    assert peak.length_s == 3_600.0 and peak.start_s <= 6_000.0 < peak.start_s + 3_600.0
    assert found.calls == sum(counts) and len(found.hours) == 3
    assert [hour.calls for hour in found.hours] == [120, 265, 120]
    rows = [json.loads(line) for line in (tmp_path / "pieces" / "busiest.jsonl").read_text().splitlines()]
    assert len(rows) == 45 + 2 * 4
    assert min(row["timestamp"] for row in rows) == 98 * 60_000.0
    assert Trace.of(tmp_path / "pieces" / "busiest.jsonl").timetable.first_s == 98 * 60.0


def test_the_start_of_a_trace_warms_up(tmp_path):
    day(tmp_path / "day.jsonl", [5] * 10)
    busiest = planned(tmp_path / "day.jsonl", tmp_path / "pieces").busiest
    assert (busiest.warm_up_s, busiest.start_s, busiest.length_s) == (120.0, 120.0, 180.0)


def test_work_grows_with_the_length_of_prompts_and_answers():
    prefill_s, decode_s = work_s(PROFILE, 8_000, 10)
    assert prefill_s > work_s(PROFILE, 1_000, 10)[0] * 8
    assert decode_s < work_s(PROFILE, 8_000, 100)[1] / 9


def test_a_generator_is_its_own_window(tmp_path):
    found = planned("generator:no_reuse:rate_per_s=5", tmp_path)
    assert found.busiest.trace == "generator:no_reuse:rate_per_s=5"
    assert (found.peak, found.hours) == (None, ())
    assert found.busiest.calls == pytest.approx(1_500, rel=0.1)


def test_a_trace_of_centuries_is_refused(tmp_path):
    row = {"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [1]}
    (tmp_path / "long.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row | {"timestamp": 1e14}) + "\n")
    with pytest.raises(WorkloadError, match="at most 366 days"):
        planned(tmp_path / "long.jsonl", tmp_path / "pieces")
