import pytest

from policies.spec import PolicySpec
from router.admin.observe.what_if import WhatIfDocument, what_if
from router.placement.decision_log.summary import Choices, DifferentChoice
from tests.router.admin.conftest import over_processes


@pytest.fixture
def busy(system):
    for name in "ab":
        system.join(f"http://{name}:1")
    for number in range(8):
        system.serve(f"r{number}", 2_000)


async def test_another_rule_is_compared_with_the_latest_decisions(client, system, busy):
    found = (await client.post("/admin/v1/what-if", json={"rule": "round_robin"})).json()
    went = [record.worker for record in system.core.log.latest(8)][::-1]
    turns = [("a:1", "b:1")[number % 2] for number in range(8)]
    differ = sum(one != other for one, other in zip(went, turns, strict=True))
    assert (found["kept"], found["decisions"], found["elsewhere"]) == (8, 8, differ)
    assert found["elsewhere_share"] == differ / 8
    assert found["recorded_cached_share"] == found["replayed_cached_share"] == 0.0
    assert [one["request_id"] for one in found["differences"]] == [
        f"r{number}" for number in reversed(range(8)) if went[number] != turns[number]
    ]


async def test_without_a_decision_there_is_nothing_to_compare(client):
    found = (await client.post("/admin/v1/what-if", json={"rule": "lpwl"})).json()
    assert (found["decisions"], found["since_s"], found["recorded_ttft_s"]) == (0, None, None)


WRONG = [{"rule": "nothing"}, {"rule": "lpwl", "params": {"x": 1}}, {"rule": "lpwl", "x": 1}]


@pytest.mark.parametrize("question", WRONG)
async def test_a_policy_that_cannot_be_built_is_refused(client, problem, question):
    assert problem(await client.post("/admin/v1/what-if", json=question), 422)[0] == "invalid_value"


async def test_a_second_one_at_the_same_time_is_refused(client, system, problem, busy):
    with system.core.what_ifs.begin(PolicySpec("lpwl")):
        answer = await client.post("/admin/v1/what-if", json={"rule": "lpwl"})
    assert problem(answer, 409)[0] == "what_if_running" and answer.headers["retry-after"] == "1"


def part(decisions, elsewhere, since_s, at_s):
    sums = Choices(float(decisions), 10, 100, 1)
    return WhatIfDocument(
        rule="lpwl", kept=20, decisions=decisions, elsewhere=elsewhere, without_prompt=1, failures=0, since_s=since_s,
        recorded=sums, replayed=Choices(), differences=[DifferentChoice(at_s, "r", "a", "b", 0.1, 5)],
    )  # fmt: skip


def test_processes_add_what_they_find():
    found = over_processes(what_if, [part(10, 2, 5.0, 1.0), part(30, 6, 9.0, 2.0), part(0, 0, None, 0.5)])
    assert (found.kept, found.decisions, found.elsewhere, found.since_s) == (60, 40, 8, 9.0)
    assert (found.elsewhere_share, found.recorded_ttft_s, found.recorded_cached_share) == (0.2, 1.0, 0.1)
    assert found.replayed_cached_share is None
    assert [one.at_s for one in found.differences] == [2.0, 1.0, 0.5]
