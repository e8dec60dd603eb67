from random import Random

import pytest

from backends.worker import LoadReport
from router.placement.admission import credit
from router.placement.admission.admission import MODELS_KEPT, Waits
from router.placement.admission.classes import Claim, RequestClass
from router.placement.admission.prediction import LONGEST_RETRY_S, EarlyRefusal, retry_after_s
from router.placement.request import FailurePoint, Request, Usage
from router.placement.tickets import Queued, Reject, Ticket
from router.residency.prompt import Prompt, PromptSource
from tests.router.placement.conftest import make_prompt

LONG = 8_000
"""A prompt of half a second, at the speed assumed until one is learned."""
CHAT = RequestClass("chat", share=0.5, floor=0.5, ttft_s=1.0)
NORMAL = RequestClass("normal", share=0.5)
BATCH = RequestClass("batch", share=0.0)
CLASSES = (CHAT, NORMAL, BATCH)


def test_an_idle_worker_takes_any_request_and_a_busy_one_lets_it_wait(make_admission):
    rig = make_admission(CLASSES)
    assert isinstance(rig.ask("first", Claim(BATCH), LONG), Ticket)
    assert isinstance(rig.ask("second", Claim(CHAT), LONG), Waits)
    assert rig.turn() == []
    rig.end("first")
    assert rig.turn() == ["second"]


def test_the_best_worker_with_room_gets_the_request(make_admission):
    rig = make_admission(CLASSES, workers=2)
    sent = {rig.ask(name, Claim(NORMAL), LONG).candidate.id for name in ("a", "b")}
    assert len(sent) == 2
    assert isinstance(rig.ask("c", Claim(NORMAL), LONG), Waits)


def test_classes_with_a_share_go_before_those_without_and_in_their_order(make_admission):
    rig = make_admission(CLASSES)
    rig.ask("running", Claim(NORMAL), LONG)
    for name, one in (("b", BATCH), ("n", NORMAL), ("c", CHAT)):
        rig.ask(name, Claim(one), LONG)
    assert rig.drain() == ["c", "n", "b"]


def test_classes_that_always_wait_get_their_shares(make_admission):
    heavy, light = RequestClass("heavy", share=3.0), RequestClass("light", share=1.0)
    rig = make_admission((heavy, light))
    rig.ask("running", Claim(light), LONG)
    for number in range(80):
        rig.ask(f"heavy-{number}", Claim(heavy), LONG)
        rig.ask(f"light-{number}", Claim(light), LONG)
    first = rig.drain()[:80]
    assert sum(name.startswith("heavy") for name in first) == pytest.approx(60, abs=5)


def test_a_starved_class_without_a_share_gets_a_little(make_admission):
    batch = RequestClass("batch", share=0.0, starvation_s=0.0)
    rig = make_admission((NORMAL, batch))
    rig.ask("running", Claim(NORMAL), LONG)
    for number in range(100):
        rig.ask(f"n-{number}", Claim(NORMAL), LONG)
    rig.ask("b", Claim(batch), LONG)
    place = rig.drain().index("b")
    assert place < 100
    patient = make_admission((NORMAL, BATCH))
    patient.ask("running", Claim(NORMAL), LONG)
    for number in range(100):
        patient.ask(f"n-{number}", Claim(NORMAL), LONG)
    patient.ask("b", Claim(BATCH), LONG)
    assert patient.drain()[-1] == "b"


def test_the_earliest_deadline_goes_first_and_without_one_the_earliest_arrival(make_admission):
    rig = make_admission((CHAT,))
    rig.ask("running", Claim(CHAT), LONG)
    rig.ask("usual", Claim(CHAT), LONG)
    rig.now_s = 0.1
    rig.ask("later", Claim(CHAT), LONG)
    rig.ask("urgent", Claim(CHAT, ttft_s=0.2), LONG)
    assert rig.drain() == ["urgent", "usual", "later"]


def test_tenants_take_turns_by_seconds_and_not_by_requests(make_admission):
    rig = make_admission((NORMAL,))
    rig.ask("running", Claim(NORMAL), LONG)
    for number in range(40):
        rig.ask(f"long-{number}", Claim(NORMAL, "a"), LONG)
    for number in range(160):
        rig.ask(f"short-{number}", Claim(NORMAL, "b"), LONG // 4)
    order = rig.drain()[:100]
    long = sum(name.startswith("long") for name in order) * LONG
    short = sum(name.startswith("short") for name in order) * (LONG // 4)
    assert long == pytest.approx(short, rel=0.25)


def test_leaving_frees_the_place_at_once_and_costs_nothing(make_admission):
    rig = make_admission((NORMAL,))
    rig.ask("running", Claim(NORMAL, "a"), LONG)
    rig.ask("gone", Claim(NORMAL, "b"), LONG)
    line = next(iter(rig.admission.queue("m").lines()))
    before_s = line.credits.spent_s("b")
    assert rig.leave("gone")
    assert not rig.leave("gone")
    assert (len(rig.admission), line.requests, line.seconds, line.tenants) == (0, 0, 0.0, {})
    assert line.credits.spent_s("b") == before_s
    rig.end("running")
    assert rig.turn() == []


def test_a_request_that_would_wait_too_long_is_refused_at_arrival(make_admission):
    hasty = RequestClass("hasty", max_wait_s=2.0)
    rig = make_admission((hasty, NORMAL))
    rig.ask("running", Claim(NORMAL), LONG)
    answers = [rig.ask(f"h-{number}", Claim(hasty), LONG) for number in range(10)]
    refused = [one for one in answers if isinstance(one, EarlyRefusal)]
    assert isinstance(answers[0], Waits)
    assert isinstance(answers[-1], EarlyRefusal)
    assert refused[0].wait_s > 2.0
    assert refused[0].retry_after_s is None, "no drain rate has been measured"
    assert isinstance(rig.ask("patient", Claim(NORMAL), LONG), Waits)
    assert isinstance(rig.ask("own", Claim(NORMAL, ttl_s=0.5), LONG), EarlyRefusal)


def test_retry_after_follows_the_drain_rate_once_there_is_one(make_admission):
    hasty = RequestClass("hasty", max_wait_s=3.0)
    rig = make_admission((hasty,))
    rig.ask("running", Claim(hasty), LONG)
    for number in range(5):
        rig.ask(f"h-{number}", Claim(hasty), LONG)
    for _ in range(4):
        rig.now_s += 0.5
        rig.end(next(iter(rig.tickets)))
        assert rig.turn()
    for number in range(20):
        answer = rig.ask(f"more-{number}", Claim(hasty), LONG)
    assert isinstance(answer, EarlyRefusal)
    assert 1.0 * 0.75 <= answer.retry_after_s <= LONGEST_RETRY_S


@pytest.mark.parametrize("excess_s", [0.0, 1.0, 10.0, 1e6])
def test_retry_after_is_capped_and_varies(excess_s):
    rng = Random(0)
    found = {retry_after_s(excess_s, rng) for _ in range(50)}
    assert all(0.75 <= one <= LONGEST_RETRY_S for one in found)
    assert len(found) > 1


def test_a_request_expires_and_is_not_refused_in_its_turn(make_admission):
    hasty = RequestClass("hasty", max_wait_s=2.0)
    rig = make_admission((hasty,))
    rig.ask("running", Claim(hasty), LONG)
    rig.ask("waits", Claim(hasty), LONG)
    rig.now_s = 1.999
    assert rig.admission.expired(rig.now_s) == []
    rig.now_s = 2.0
    assert [one.item for one in rig.admission.expired(rig.now_s)] == ["waits"]
    assert len(rig.admission) == 0


def test_a_wait_counts_from_its_beginning_and_arrival_only_orders(make_admission):
    """The answer of an old request lost its worker, and waits for another one."""
    hasty = RequestClass("hasty", share=0.0, max_wait_s=2.0)
    rig = make_admission((hasty,))
    rig.now_s = 100.0
    rig.ask("running", Claim(hasty), LONG)
    rig.ask("young", Claim(hasty))
    assert isinstance(rig.ask("old", Claim(hasty), arrived_s=1.0), Waits)
    (line,) = rig.admission.queue("m").lines()
    assert line.oldest_s() == 100.0, "it does not starve"
    assert rig.admission.expired(101.0) == []
    assert rig.drain() == ["old", "young"]


def test_an_answer_that_has_begun_is_neither_refused_nor_expires(make_admission):
    hasty = RequestClass("hasty", max_wait_s=2.0)
    rig = make_admission((hasty,))
    answers = [rig.ask(f"h-{number}", Claim(hasty, ttl_s=2.0), LONG) for number in range(10)]
    assert isinstance(answers[-1], EarlyRefusal)
    assert isinstance(rig.ask("begun", Claim(hasty, ttl_s=2.0, begun=True), LONG), Waits)
    assert "begun" not in [one.item for one in rig.admission.expired(1_000.0)]


def test_stale_metrics_do_not_stop_dispatch(make_admission):
    rig = make_admission((NORMAL,))
    candidate = rig.fleet.candidates[0]
    for at_s in (0.0, 1.0):
        rig.core.loads.load_reported(candidate, LoadReport(0, 250, 300, 1.0), at_s)
    rig.now_s = 1.0
    assert isinstance(rig.ask("now", Claim(NORMAL), 100), Waits)
    rig.now_s = 60.0
    assert rig.turn() == ["now"]


def test_a_floor_keeps_part_of_the_headroom_free(make_admission):
    rig = make_admission((CHAT, BATCH))
    rig.ask("a", Claim(CHAT), 2_200)  # 0.13 s
    assert isinstance(rig.ask("b", Claim(BATCH), 100), Waits)
    rig.leave("b")
    assert isinstance(rig.ask("c", Claim(CHAT), 100), Ticket)


def test_a_failed_worker_and_a_missing_one(make_admission):
    rig = make_admission((NORMAL,))
    rig.ask("a", Claim(NORMAL), LONG)
    rig.ask("b", Claim(NORMAL), LONG)
    rig.core.tickets.failed(rig.tickets.pop("a"), FailurePoint.CONNECT, 0.0, "refused")
    rig.fleet.remove(rig.fleet.endpoints[0].id)
    assert rig.turn() == []
    assert isinstance(rig.answers["b"], (Queued, Reject)), "no worker is ready, so it does not wait for its turn"
    assert (len(rig.admission), rig.leave("b")) == (0, False)
    assert isinstance(rig.ask("c", Claim(NORMAL), 10), (Queued, Reject))


def test_a_request_leaves_although_its_model_has_other_workers_by_then(make_admission, monkeypatch):
    rig = make_admission((NORMAL,))
    rig.ask("a", Claim(NORMAL), LONG)
    rig.ask("b", Claim(NORMAL), LONG)
    monkeypatch.setattr(rig.admission, "pool", lambda request: "another")
    assert rig.leave("b")
    assert len(rig.admission) == 0
    rig.end("a")
    assert rig.turn() == []


def test_names_of_models_that_nobody_serves_make_no_queues_and_forgive_no_debt(make_admission):
    rig = make_admission((NORMAL,))
    rig.ask("a", Claim(NORMAL, "red"), LONG)
    queue = rig.admission.queue("m")
    for number in range(2 * MODELS_KEPT):
        assert isinstance(rig.ask(f"n-{number}", Claim(NORMAL, "red"), 10, model=f"n-{number}"), Reject)
    assert rig.admission.queue("m") is queue
    assert list(rig.admission.statistics()) == ["m"]


def test_a_request_that_waits_is_not_refused_while_workers_are_at_their_limit(make_admission):
    rig = make_admission((CHAT, BATCH), max_requests_per_worker=2)
    rig.ask("running", Claim(CHAT), 2_200)
    assert isinstance(rig.ask("waits", Claim(BATCH), 100), Waits)
    rig.core.dispatcher.dispatch(Request("pinned", "/v1/completions", "m", None, 10, 0.0), 0.0)
    rig.core.tickets.first_token(rig.tickets["running"], rig.now_s)
    assert rig.turn() == []
    assert isinstance(rig.answers["waits"], Waits)
    rig.end("running")
    assert rig.turn() == ["waits"]


def test_memory_is_bounded_for_any_fairness_ids(make_admission, monkeypatch):
    monkeypatch.setattr(credit, "KEPT", 100)
    patient = RequestClass("patient", max_wait_s=3_600.0)
    rig = make_admission((patient, BATCH))
    rig.ask("running", Claim(BATCH), LONG)
    queue = rig.admission.queue("m")
    line = next(iter(queue.lines()))
    for number in range(2_000):
        rig.now_s += 0.5
        rig.ask(number, Claim(patient, f"key/{number}"), LONG)
        if number % 2:
            rig.leave(number)
        else:
            rig.end("running" if not number else number - 2)
            assert rig.turn() == [number]
        assert len(queue._expiry) <= 70
    rig.end(1_998)
    assert (line.tenants, line.requests, len(rig.admission), rig.admission._running) == ({}, 0, 0, {})
    assert len(line.credits) <= 100


def test_models_wait_apart(make_admission):
    rig = make_admission((NORMAL,), models=("m", "n"))
    rig.ask("a", Claim(NORMAL), LONG, model="m")
    rig.ask("b", Claim(NORMAL), LONG, model="m")
    assert isinstance(rig.ask("c", Claim(NORMAL), LONG, model="n"), Waits)
    assert rig.admission.queue("n") is not rig.admission.queue("m")
    assert sorted(rig.admission.statistics()) == ["m", "n"]


def test_several_answers_cost_their_decodes(make_admission):
    rig = make_admission((NORMAL,))
    rig.now_s = 0.1
    rig.ask("teaches", Claim(NORMAL), 100)
    rig.core.tickets.first_token(rig.tickets["teaches"], 0.2)
    rig.now_s = 1.2
    rig.end("teaches", 101)
    rig.ask("one", Claim(NORMAL), 100)
    rig.ask("four", Claim(NORMAL), 100, answers=4)
    one, four = (rig.admission._running[rig.tickets[name].id].cost for name in ("one", "four"))
    assert four.tokens == 4 * one.tokens > 0
    assert four.token_s > 0
    assert four.corrected_s(round(four.tokens)) == pytest.approx(0.0, abs=1e-3)


def test_a_request_whose_turn_comes_as_it_expires_has_expired(make_admission):
    hasty = RequestClass("hasty", max_wait_s=2.0)
    rig = make_admission((hasty,))
    rig.ask("running", Claim(hasty), LONG)
    rig.now_s = 3.0
    assert isinstance(rig.ask("waits", Claim(hasty), LONG), Waits)
    assert [one.item for one in rig.admission.expired(rig.now_s)] == []
    rig.now_s = 5.0
    rig.end("running")
    assert [one.item for one in rig.admission.expired(rig.now_s)] == ["waits"], "the time is over before the turn"
    assert rig.turn() == []


def test_a_request_whose_prefix_was_on_a_worker_that_has_gone_goes_to_another(make_admission):
    rig = make_admission((NORMAL,), workers=2)
    for name in ("a", "b"):
        rig.ask(name, Claim(NORMAL), LONG)
    home = rig.tickets["a"].candidate
    rig.end("a", tokens=1)
    rig.ask("busy", Claim(NORMAL), LONG)
    rig.requests["again"] = rig.requests["a"]
    rig.claims["again"] = Claim(NORMAL)
    assert isinstance(rig._ask("again"), Waits)
    rig.fleet.remove(home.endpoint.id)
    rig.end("b")
    assert rig.turn() == ["again"]


def test_a_class_without_room_does_not_stop_one_that_has_some(make_admission):
    rig = make_admission((NORMAL, CHAT))  # chat's floor leaves half of the headroom to the first class
    rig.ask("running", Claim(CHAT), 2_200)  # 0.13 s
    assert isinstance(rig.ask("normal", Claim(NORMAL), 100), Waits)
    rig.ask("chat", Claim(CHAT), 100)
    assert rig.turn() == ["chat"]
    assert isinstance(rig.answers["normal"], Waits)


def test_a_prompt_that_nobody_has_read_costs_what_its_size_says_and_a_list_the_sum_of_its_prompts(make_admission):
    rig = make_admission((NORMAL,))
    costs = []
    for name, prompt in (
        ("unread", None),
        ("list", Prompt(LONG, PromptSource.IDS, lambda block: [], multiple=True)),
        ("read", make_prompt(range(LONG))),
    ):
        request = Request(name, "/v1/completions", "m", prompt, LONG, 0.0)
        ticket = rig.admission.ask(name, request, Claim(NORMAL), 0.0)
        costs.append(rig.admission._running[ticket.id].cost.prefill_s)
        rig.core.tickets.finished(ticket, Usage(None, 1), 0.0)
    assert costs == [pytest.approx(costs[2])] * 3
    assert costs[0] == pytest.approx(0.5, abs=0.05)
