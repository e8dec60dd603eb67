from router.config.budgets import plan_memory
from router.config.memory import MemoryLimit
from router.config.model import Config
from router.metrics.catalogue import CATALOGUE
from router.telemetry import readings


def test_buffers_have_a_gauge_of_their_limit_and_one_of_their_use(monkeypatch):
    plan = plan_memory(Config(), 1, MemoryLimit(1 << 30, "cgroup v2"))
    monkeypatch.setattr(readings, "memory_limit", lambda: plan.limit)
    read = {(name, labels): value for name, labels, value in readings.ProcessReadings(plan.config).readings()}
    assert read["warmroute_memory_limit_bytes", ("cgroup v2",)] == 1 << 30
    limits = {place: value for place, value in read.items() if place[0].endswith(("ed_limit_bytes", "e_limit_bytes"))}
    assert list(limits.values()) == list(plan.budgets.values())[:2]
    declared = {spec.name: spec.labels for spec in CATALOGUE}
    assert all(declared[name] == declared[name.replace("_limit_bytes", "_bytes")] for name, _ in limits)
