"""Changes of roles on virtual time: the gateway's planner decides them, from what the run measures."""

import logging
from dataclasses import replace

import pytest

from backends.engine.profile import DecodeCost
from loadtest.sim.gateway import Delays, SimulatedGateway
from loadtest.sim.handover import HandoverSetting
from loadtest.sim.late_ledger import LateLedgers
from loadtest.sim.run import Setting, simulate
from loadtest.sim.virtual_time import VirtualTime
from policies.spec import PolicySpec
from router.residency.residency_map import ResidencyMap

SOON = HandoverSetting(("prefill", "prefill", "decode"), "never", flip_after_s=60.0, plan_window_s=60.0)


@pytest.fixture
def play(spec, make_call, make_session):
    """Play a call per second, two at a time, whose answer takes 0.8 s and most of a worker's KV cache. Return the
    workers that wrote the answers, in order of arrival."""

    def run(handover, calls=180):
        sessions = []
        for number in range(calls):
            first = 20 * number
            call = make_call(range(first, first + 4 + number % 5 * 4), [7] * 40)
            sessions.append(make_session(f"s{number}", call, start_s=number - number % 2))
        slow = replace(spec.profile, decode=DecodeCost(a_ms=20.0, b_ms=0.0, k_ns=0.0))
        workers = (replace(spec, profile=slow, num_blocks=18),) * len(handover.roles)
        outcomes = simulate(Setting(workers, delays=Delays(load_interval_s=1.0), handover=handover), sessions).outcomes
        return [one.worker for one in sorted(outcomes, key=lambda one: (one.sent_s, one.id))]

    return run


def test_a_prefill_worker_that_has_nothing_to_do_becomes_a_decode_worker(play, caplog):
    with caplog.at_level(logging.WARNING):
        workers = play(SOON)
    assert not caplog.records
    first = next(number for number, name in enumerate(workers) if name != "worker-2")
    # The first plan has 50 requests. It has to be right for a minute, and the worker that drains is idle.
    assert 110 < first < 140
    assert len(set(workers)) == 2, "the last prefill worker stays one"


def test_a_fixed_split_stays(play):
    assert set(play(replace(SOON, flip_after_s=None), calls=140)) == {"worker-2"}


def test_one_of_several_gateways_changes_no_roles():
    time = VirtualTime()
    ledger = LateLedgers(2, 0.0, lambda: time.now_s).of(0)
    with pytest.raises(ValueError, match="one of several gateways"):
        SimulatedGateway(
            time, [], ResidencyMap(), None, PolicySpec("lpwl"), delays=Delays(), ledger=ledger, handover=SOON
        )
