import msgspec
import pytest

from router.config.budgets import BODIES, BYTE_BUDGETS, LEAST_BYTES, RSS_PER_BYTE, plan_memory
from router.config.memory import MemoryLimit
from router.config.model import Config, LimitsConfig
from router.gateway.http.send_buffer_limit import SendBufferLimit
from router.process.children.child_config import share_of
from router.requests.body_buffer_limit import BodyBufferLimit

MIB = 1 << 20


def plan(settings, limit_bytes, processes=1):
    limit = MemoryLimit(limit_bytes, "cgroup v2") if limit_bytes else None
    return plan_memory(msgspec.convert(settings, Config), processes, limit)


def together(found):
    copies = {budget.path: found.processes if budget.per_process else 1 for budget in BYTE_BUDGETS}
    return sum(size_bytes * copies[path] for path, size_bytes in found.budgets.items())


@pytest.mark.parametrize("processes", [1, 4, 64])
@pytest.mark.parametrize("limit_mib", [256, 512, 1_024, 4_096, 9_216, 65_536])
def test_all_budgets_fit_three_times_in_half_of_the_limit(limit_mib, processes):
    found = plan({}, limit_mib * MIB, processes)
    least = sum(budget.per_process * processes * LEAST_BYTES for budget in BYTE_BUDGETS)
    assert RSS_PER_BYTE * (together(found) - least) <= limit_mib * MIB / 2
    assert not found.warnings


def test_with_plenty_of_memory_each_budget_has_its_most():
    for found in (plan({}, 9 << 30), plan({}, None)):
        assert list(found.budgets.values()) == [1 << 30, 1 << 28, 1 << 27, 1 << 27]
        assert found.config.limits.max_body_bytes == LimitsConfig().max_body_bytes


def test_with_less_memory_each_has_the_same_part_and_uses_what_there_is():
    found = plan({}, 1 << 30)
    parts = [
        size_bytes / budget.most_bytes for budget, size_bytes in zip(BYTE_BUDGETS, found.budgets.values(), strict=True)
    ]
    assert parts == pytest.approx([parts[0]] * 4, rel=1e-6)
    assert together(found) == pytest.approx((1 << 30) / 6, rel=1e-6)


def test_a_budget_that_is_set_is_kept_and_changes_no_other():
    found = plan({"limits": {"max_buffered_body_bytes": 70_000_000}}, 1 << 30)
    expected = {**plan({}, 1 << 30).budgets, BODIES.path: 70_000_000}
    assert found.budgets == expected
    assert not found.warnings


def test_budgets_that_are_set_beyond_what_the_limit_carries_are_warned_about():
    (warning,) = plan({"limits": {"max_buffered_body_bytes": 1 << 30}}, 1 << 30).warnings
    assert "limit of 1073741824 bytes (cgroup v2) carries 178956970" in warning
    assert "lower limits.max_buffered_body_bytes, or raise the limit" in warning


def test_no_body_is_larger_than_the_budget_for_bodies():
    found = plan({"limits": {"max_body_bytes": 60 * MIB}}, 256 * MIB)
    assert found.config.limits.max_body_bytes == found.budgets[BODIES.path] < 60 * MIB
    (warning,) = found.warnings
    assert f"limits.max_body_bytes is {60 * MIB}, but a body of more than {found.budgets[BODIES.path]}" in warning


def test_shares_of_several_processes_keep_to_the_derived_budget():
    found = plan({}, 1 << 30, processes=4)
    shares = [share_of(found.config.limits, process, 4) for process in range(4)]
    assert sum(BODIES.of(share) for share in shares) <= found.budgets[BODIES.path] + 4
    assert all(share.max_body_bytes <= BODIES.of(share) for share in shares)


def test_shares_of_a_budget_that_is_set_take_a_whole_body():
    found = plan({"limits": {"max_buffered_body_bytes": 100 * MIB}}, 16 << 30, processes=4)
    assert BODIES.of(share_of(found.config.limits, 0, 4)) == found.config.limits.max_body_bytes == 64 * MIB


def test_a_whole_body_for_each_process_counts_where_their_shares_are_smaller():
    settings = {"limits": {"max_buffered_body_bytes": 128 * MIB}}
    assert not plan(settings, 2 << 30, processes=2).warnings
    (warning,) = plan(settings, 2 << 30, processes=8).warnings
    assert f"the byte budgets are {together(plan(settings, 2 << 30, processes=8)) + 384 * MIB} bytes" in warning


def test_the_parts_of_the_gateway_take_the_planned_numbers():
    limits = plan({}, 256 * MIB).config.limits
    assert BodyBufferLimit(limits).max_body_bytes == limits.max_buffered_body_bytes
    assert SendBufferLimit(limits)._limit_bytes == limits.max_buffered_response_bytes


def test_a_plan_is_stated_for_people_and_for_programs():
    found = plan({}, 1 << 30, processes=2)
    lines = list(found.lines())
    assert lines[0] == "memory limit 1,024.0 MiB (cgroup v2)"
    assert "  residency.memo_bytes: 12.2 MiB for each of 2 processes" in lines
    stated = found.to_builtins()
    assert (stated["limit_bytes"], stated["source"], stated["processes"]) == (1 << 30, "cgroup v2", 2)
    assert stated["max_buffered_body_bytes"] == found.budgets[BODIES.path]
    assert plan({}, None).to_builtins()["source"] == "unknown"
    assert next(plan({}, None).lines()) == "memory limit unknown"
