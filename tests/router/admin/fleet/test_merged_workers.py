from router.admin.fleet.merged_workers import merge_workers
from router.admin.fleet.worker_documents import (
    CandidateDocument,
    Estimates,
    LinkDocument,
    Load,
    PredictedCached,
    Worker,
)


def worker(name="a:1", state="ready", running=1, foreign=0, observations=0, token_us=None, equal=0) -> Worker:
    candidate = CandidateDocument(
        id=name,
        rank=None,
        residency="exact",
        reason="",
        blocks=3,
        block_size=16,
        capacity_blocks=None,
        capacity_tokens=None,
        load=Load(queued_requests=running, queued_tokens=10 * running, running_requests=running, kv_tokens=100,
                  foreign_requests=foreign),
        estimates=Estimates(observations=observations, prefill_token_us=token_us),
        predicted_cached=PredictedCached(equal=equal, differences={"other": equal}),
        events=None,
        self_test=None,
    )  # fmt: skip
    return Worker(
        id=name, url=f"http://{name}", state=state, reason="why", version=None, restarts=0, in_flight=running,
        models=[], candidates=[candidate], notes=["a note"], labels={"lane": "decode"},
        name=None, weight=1.0, role="mixed",
    )  # fmt: skip


def test_loads_are_summed_and_views_are_from_the_first_process():
    said = {0: [worker(running=1, foreign=2, equal=1)], 2: [worker(running=4, foreign=3, equal=5)]}
    (merged,) = merge_workers(said)
    (candidate,) = merged.candidates
    assert candidate.load == Load(
        queued_requests=5, queued_tokens=50, running_requests=5, kv_tokens=200, foreign_requests=2
    )
    assert candidate.predicted_cached.equal == 6
    assert candidate.predicted_cached.differences == {"other": 6}
    assert candidate.blocks == 3
    assert merged.in_flight == 5
    assert merged.labels == {"lane": "decode"}
    assert merged.notes == ["a note"]


def test_estimates_are_from_the_process_with_most_observations():
    said = {0: [worker(observations=1)], 1: [worker(observations=9, token_us=50.0)]}
    (merged,) = merge_workers(said)
    assert merged.candidates[0].estimates == Estimates(observations=10, prefill_token_us=50.0)


def test_links_are_from_the_process_with_most_transfers():
    few, many = worker(), worker()
    few.candidates[0].links = [LinkDocument("b:1", "pull", 10.0, 0.1, 2), LinkDocument("b:2", "pull", 10.0, 0.1, 2)]
    many.candidates[0].links = [LinkDocument("b:1", "pull", 20.0, 0.1, 5)]
    (merged,) = merge_workers({0: [few], 1: [many]})
    assert merged.candidates[0].links == many.candidates[0].links


def test_another_state_in_one_process_is_noted():
    (merged,) = merge_workers({0: [worker()], 1: [worker(state="unhealthy")]})
    assert merged.state == "ready"
    assert merged.notes[-1] == "process 1 has it unhealthy (why)"


def test_a_process_that_has_not_probed_is_not_used():
    fresh = worker(state="starting")
    fresh.candidates = []
    (merged,) = merge_workers({0: [fresh], 1: [worker(running=3)]})
    assert (merged.state, merged.candidates[0].load.running_requests) == ("ready", 3)
    assert merged.notes[-1] == "process 0 has it starting (why)"


def test_a_worker_that_only_some_processes_know_is_listed():
    merged = merge_workers({0: [worker("a:1"), worker("b:1")], 1: [worker("b:1")]})
    assert [(each.id, each.candidates[0].load.running_requests) for each in merged] == [("a:1", 1), ("b:1", 2)]
    assert merge_workers({}) == []
