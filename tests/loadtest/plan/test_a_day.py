"""The bar of a day: a million calls are planned in ten minutes on two cores."""

import json

import pytest

from router.cli.main import main
from tests.support.day_of_chats import write_day

pytestmark = [pytest.mark.nightly, pytest.mark.measures, pytest.mark.timeout(3_600)]

CPU_S = 2 * 600.0


def test_a_day_of_a_million_calls_takes_ten_minutes_on_two_cores(tmp_path):
    day, plan = tmp_path / "day.jsonl", tmp_path / "plan.json"
    write_day(day, 1_002_000)
    words = ("--goodput", "ttft:1000", "tpot:50", "--candidate", "llama-3.1-8b-a100:price=1.4", "--jobs", "2")
    assert main(["plan", "--trace", str(day), *words, "--json", str(plan)]) == 0
    found = json.loads(plan.read_text())
    assert found["traffic"]["calls"] > 1_000_000 and found["workers"] == 2
    assert found["mean_workers"] == 1.5, "as without bisection"
    assert sum(one["simulated"] for one in found["hours"]) <= 12
    assert found["cpu_s"] < CPU_S, "what two cores have in ten minutes; the clock of a busy machine says nothing"
