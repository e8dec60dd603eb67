from loadtest.replicas.cases import Case
from loadtest.replicas.simulated import chosen, play, simulate


def test_a_run_repeats_and_answers_every_call():
    (workload,) = chosen(["shared-prompts"])
    case = Case(4, True, True)
    first = play(workload, case, 1)
    assert first == play(workload, case, 1)
    assert first.requests == 192 and first.failed == 0
    assert 0.8 < first.cached < 1.0 and first.imbalance >= 1.0


def test_sharing_load_evens_the_workers_out():
    (workload,) = chosen(["shared-prompts"])
    alone, shared = (play(workload, Case(8, True, redis), 0).imbalance for redis in (False, True))
    assert shared < alone


def test_every_case_is_played_with_every_seed():
    done = []
    found = simulate(["shared-prompts"], (1, 2), seeds=1, jobs=1, progress=lambda: done.append(1))
    assert list(found) == ["shared-prompts"]
    assert len(found["shared-prompts"]) == 6 and len(done) == 6
    assert all(len(played.runs) == 1 for played in found["shared-prompts"])
    assert {played.case.gateways for played in found["shared-prompts"]} == {1, 2}
