import numpy as np
import pytest

from backends.worker import Endpoint
from router.config.model import HealthConfig
from router.placement.fleet.endpoints import Candidate, FleetEndpoint
from router.placement.fleet.health import Health
from router.placement.handover import links as module
from router.placement.handover.links import Links, Transfer

PRIOR_PER_S, PRIOR_LATENCY_S = 100_000.0, 0.01


def candidates(count, first_slot=0):
    made = []
    for number in range(count):
        endpoint = FleetEndpoint(Endpoint("http", "h", 1 + number), Health(HealthConfig()))
        made.append(Candidate(endpoint, first_slot + number, None))
    return made


@pytest.fixture
def links():
    return Links("pull", PRIOR_PER_S, PRIOR_LATENCY_S)


def teach(links, sender, receiver, tokens, took_s, own_s=0.0, at_s=0.0, queue_s=0.0):
    links.observe(Transfer("pull", sender, receiver, tokens, own_s, queue_s, at_s), at_s + took_s)


def time_s(links, sender, receiver, tokens, now_s=0.0):
    per_s, latency_s = links.speeds([sender], [receiver], now_s)
    return float(latency_s[0, 0] + tokens / per_s[0, 0])


def test_without_transfers_the_settings_count(links):
    per_s, latency_s = links.speeds(candidates(2), candidates(3, 2), 0.0)
    assert per_s == pytest.approx(np.full((2, 3), PRIOR_PER_S), rel=1e-3)
    assert latency_s == pytest.approx(np.full((2, 3), PRIOR_LATENCY_S))


def test_bandwidth_and_latency_are_told_apart(links):
    sender, receiver = candidates(2)
    for turn in range(40):
        tokens = (100, 1_000, 10_000)[turn % 3]
        teach(links, sender, receiver, tokens, 0.2 + tokens / 10_000)
    (link,) = links.known(0.0)
    assert link.tokens_per_s == pytest.approx(10_000, rel=0.15)
    assert link.latency_s == pytest.approx(0.2, rel=0.15)
    assert (link.sender, link.receiver, link.transfers) == (sender, receiver, 40)


def test_a_transfer_of_few_tokens_says_nothing_of_the_bandwidth(links):
    """Its 50 ms are latency. By 16 tokens in 50 ms, 10,000 tokens would take half a minute."""
    sender, receiver = candidates(2)
    for _ in range(10):
        teach(links, sender, receiver, 16, 0.05)
    assert time_s(links, sender, receiver, 10_000) == pytest.approx(0.1 + 0.05, rel=0.1)
    assert time_s(links, sender, receiver, 16) == pytest.approx(0.05, rel=0.2)
    for _ in range(10):
        teach(links, sender, receiver, 10_000, 1.05)
    for _ in range(3):
        teach(links, sender, receiver, 16, 0.05)
    assert time_s(links, sender, receiver, 10_000) == pytest.approx(1.05, rel=0.2)


def test_the_time_that_tokens_are_expected_to_take_is_no_latency(links):
    sender, receiver = candidates(2)
    took_s = PRIOR_LATENCY_S + 900 / PRIOR_PER_S
    for _ in range(40):
        teach(links, sender, receiver, 900, took_s)
    assert time_s(links, sender, receiver, 900) == pytest.approx(took_s, rel=0.05)


def test_an_answer_that_waited_for_the_queue_teaches_nothing(links):
    sender, receiver = candidates(2)
    teach(links, sender, receiver, 1_000, 3.0, queue_s=2.0)
    assert links.known(0.0) == []
    teach(links, sender, receiver, 1_000, 3.0, queue_s=1.0)
    assert [link.transfers for link in links.known(0.0)] == [1]


def test_what_the_receiver_computes_is_no_part_of_the_transfer(links):
    sender, receiver = candidates(2)
    for _ in range(40):
        teach(links, sender, receiver, 1_000, 3.1, own_s=3.0)
    assert time_s(links, sender, receiver, 1_000) == pytest.approx(0.1, rel=0.1)


def test_each_pair_has_its_own_speed_and_the_others_have_the_fleets(links):
    first, second, third, fourth = candidates(4)
    for _ in range(20):
        teach(links, first, third, 1_000, 0.1)
        teach(links, second, fourth, 1_000, 1.0)
    fast, slow = time_s(links, first, third, 1_000), time_s(links, second, fourth, 1_000)
    assert fast == pytest.approx(0.1, rel=0.6)
    assert slow == pytest.approx(1.0, rel=0.2)
    between = time_s(links, first, fourth, 1_000)
    assert fast < between < slow
    assert between == pytest.approx(time_s(links, second, third, 1_000))
    assert between == pytest.approx(links.fleet(0.0).latency_s + 1_000 * links.fleet(0.0).token_s)


def test_one_late_answer_is_soon_forgotten(links):
    sender, receiver = candidates(2)
    for took_s in (0.1,) * 20 + (10.0,) + (0.1,) * 5:
        teach(links, sender, receiver, 1_000, took_s)
    assert time_s(links, sender, receiver, 1_000) < 0.3


def test_a_link_that_is_avoided_is_tried_again_after_some_minutes(links):
    slow, other, receiver = candidates(3)
    for _ in range(10):
        teach(links, slow, receiver, 1_000, 5.0)
    for number in range(100):
        teach(links, other, receiver, 1_000, 0.02, at_s=float(number))
    assert time_s(links, slow, receiver, 1_000, 10.0) > 3.0
    assert time_s(links, slow, receiver, 1_000, 600.0) < 0.3


def test_an_idle_fleet_goes_back_to_the_settings(links):
    sender, receiver = candidates(2)
    for _ in range(10):
        teach(links, sender, receiver, 1_000, 5.0)
    assert time_s(links, sender, receiver, 1_000, 100_000.0) == pytest.approx(0.02, rel=1e-3)


def test_a_slot_that_a_new_worker_gets_starts_as_an_unknown_one(links):
    old, receiver = candidates(2)
    (new,) = candidates(1)
    for _ in range(20):
        teach(links, old, receiver, 1_000, 5.0)
    old.live = False
    assert links.known(0.0) == []
    unknown = links.fleet(0.0)
    assert time_s(links, new, receiver, 1_000) == pytest.approx(unknown.latency_s + 1_000 * unknown.token_s)
    teach(links, new, receiver, 1_000, 0.1)
    assert [(link.sender, link.transfers) for link in links.known(0.0)] == [(new, 1)]
    teach(links, old, receiver, 1_000, 5.0)  # an answer that came late
    assert [link.sender for link in links.known(0.0)] == [new]


def test_the_links_used_longest_ago_make_room(links, monkeypatch):
    monkeypatch.setattr(module, "LINKS_KEPT", 20)
    workers = candidates(30)
    for place, worker in enumerate(workers[1:]):
        teach(links, worker, workers[0], 100, 0.1, at_s=float(place))
    known = links.known(30.0)
    assert {link.sender for link in known} == set(workers[10:])
    assert all(link.transfers == 1 for link in known)
    speeds, _ = links.speeds(workers[1:], workers[:1], 30.0)
    assert speeds.shape == (29, 1)
    assert np.isfinite(speeds).all()


def test_a_transfer_of_nothing_teaches_nothing(links):
    sender, receiver = candidates(2)
    teach(links, sender, receiver, 0, 1.0)
    assert links.known(0.0) == []


def test_an_answer_that_came_sooner_than_expected_is_a_fast_transfer(links):
    sender, receiver = candidates(2)
    for _ in range(20):
        teach(links, sender, receiver, 1_000, 0.1, own_s=1.0)
    assert 0.0 < time_s(links, sender, receiver, 1_000) < 0.002
