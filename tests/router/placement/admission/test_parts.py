from math import inf

from hypothesis import given
from hypothesis import strategies as st

from router.placement.admission.classes import Claim, RequestClass
from router.placement.admission.credit import QUANTUM_CHARGES, Credits
from router.placement.admission.parts import LATELY_S, TIMES, Parts
from router.placement.load.fleet_load import AheadOfRequest

NORMAL = RequestClass("normal")
SLOW = RequestClass("slow", tpot_s=0.02)
SHORT = 200


def parts_with(**running):
    parts = Parts(Credits())
    for tenant, requests in running.items():
        for _ in range(requests):
            parts.began(tenant, 1.0, 0.0)
    return parts


def test_a_tenant_alone_has_all_and_beside_others_no_more_than_its_part():
    few = round(QUANTUM_CHARGES)
    assert not parts_with(heavy=100).beyond("heavy", 0.0)
    assert not parts_with(heavy=few, light=1).beyond("heavy", 0.0)
    assert parts_with(heavy=few + 1, light=1).all_beyond(0.0) == {"heavy"}
    assert parts_with(a=30, b=30, c=30).all_beyond(0.0) == set()
    assert parts_with(a=30, b=round(30 / TIMES) - 1).all_beyond(0.0) == {"a"}


def test_a_part_is_kept_for_a_while_after_the_last_request_of_others():
    parts = parts_with(light=1, heavy=20)
    parts.ended("light", 1.0)
    parts.began("heavy", 1.0, LATELY_S)
    assert parts.beyond("heavy", LATELY_S)
    assert not parts.beyond("heavy", LATELY_S + 1.0)
    for _ in range(21):
        parts.ended("heavy", 1.0)
    assert (parts._running, parts._all_s) == ({}, 0.0)


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.floats(0.01, 10.0)), min_size=1, max_size=80))
def test_of_tenants_that_run_one_is_never_beyond_its_part_unless_it_is_alone(began):
    parts, running = Parts(Credits()), {}
    for tenant, seconds in began:
        parts.began(tenant, seconds, 0.0)
        running[tenant] = running.get(tenant, 0.0) + seconds
    beyond = parts.all_beyond(0.0)
    if len(running) > 1:
        assert min(running, key=running.get) not in beyond
        assert all(running[one] > sum(running.values()) / len(running) for one in beyond)


def test_a_heavy_tenant_leaves_room_for_the_next_requests_of_others(make_admission):
    rig = make_admission((NORMAL,))
    rig.ask("light", Claim(NORMAL, "light"), SHORT)
    for number in range(60):
        rig.ask(f"h-{number}", Claim(NORMAL, "heavy"), SHORT)
    assert rig.turn() == []
    assert 0 < len(rig.admission) < 60
    rig.ask("next", Claim(NORMAL, "light"), SHORT)
    assert rig.turn() == ["next"]
    explained = rig.admission.explained(rig.requests["h-59"], Claim(NORMAL, "heavy"), rig.now_s)
    assert explained["action"] == "wait"


def test_the_service_level_of_a_class_holds_for_its_own_tenants_beyond_their_part(make_admission):
    rig = make_admission((SLOW,))
    room, candidate = rig.admission._room, rig.fleet.candidates[0]
    for context_tokens, within in ((1_000, 0.0), (3_000, inf)):
        ahead = AheadOfRequest(9, 0.0, context_tokens, 0, 0.01, 5e-6)
        assert room.missing_s(("slow", True), ahead, candidate, 1) == within
        assert room.missing_s(("slow", False), ahead, candidate, 1) == 0.0
