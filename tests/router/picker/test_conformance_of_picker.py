"""Warmroute's picker passes the conformance suite, whose hook changes the picker's fleet."""

import pytest

from backends.worker import parse_endpoint
from router.config.model import WorkerConfig
from router.picker.conformance.fixture import CaseProfile, Effort, Fixture, Patience
from router.picker.conformance.hook import ALL, ActionNotOffered, HookAction
from router.picker.conformance.outcome import Requirement, Verdict
from router.picker.conformance.run import run_conformance
from router.placement.request import Request
from tests.support.gateway_stream import picker_rig

pytest.importorskip("grpc")

POOL = ("10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "[fd00::1]:8000")
EFFORT = Effort(streams=200, resets=200, rewrites=50, large_body_bytes=2_000_000)
PATIENCE = Patience(answer_s=10.0, pick_p99_s=2.0)


class RigHook:
    """Changes the fleet of a picker, and reads its ledger."""

    def __init__(self, rig):
        self.rig, self.fleet = rig, rig.fleet

    async def run(self, action, endpoint):
        meant = [one.id for one in self.fleet.endpoints] if endpoint == ALL else [endpoint]
        if action is HookAction.LEDGER:
            return str(sum(self.rig.load.get(one, 0) for one in meant))
        for one in meant:
            self._change(action, one)
        return ""

    def _change(self, action, endpoint):
        if action in (HookAction.NOT_READY, HookAction.UNSYNC):
            self.rig.eject(endpoint)
        elif action in (HookAction.READY, HookAction.SYNC):
            self.rig.ready(endpoint)
        elif action is HookAction.TERMINATE:
            self.fleet.drain(endpoint)
        elif action is HookAction.REMOVE:
            self.fleet.remove(endpoint)
        elif action is HookAction.ADD:
            if self.fleet.get(endpoint) is None:
                self.fleet.add(parse_endpoint(f"http://{endpoint}"), self.rig.system.now_s())
            self.fleet.undrain(endpoint)
            self.rig.ready(endpoint)
        else:
            raise ActionNotOffered


def failed(results):
    return {result.id: result.detail for result in results if result.verdict is Verdict.FAIL}


async def test_core_and_streams():
    async with picker_rig(POOL, picker={"learn": "all"}, timeouts={"queue_s": 0.0}) as rig:
        target = rig.system.ports._addresses[0].partition("://")[2]
        profiles = frozenset({CaseProfile.CORE, CaseProfile.STREAMING})
        fixture = Fixture(target, endpoints=POOL, model="m", profiles=profiles, patience=PATIENCE, effort=EFFORT)
        results = await run_conformance(fixture, RigHook(rig))
    assert failed(results).keys() <= {"A11"}, failed(results)  # the rule of the rig looks at load alone
    must = [
        result for result in results if result.case.requirement is Requirement.MUST and result.case.profile in profiles
    ]
    skipped = {result.id: result.detail for result in must if result.verdict is Verdict.SKIP}
    assert skipped.keys() <= {"H77"}, skipped  # TLS has a test of its own


def occupy(rig, count):
    """Let streams run on the workers that take whole requests."""
    now_s = rig.system.now_s()
    for number in range(count):
        ticket = rig.core.dispatcher.dispatch(Request(f"{number}", "/v1/completions", "m", None, 10, now_s), now_s)
        rig.core.tickets.first_token(ticket, now_s)


async def test_prefill_and_decode():
    prefill = "10.0.0.9:8000"
    workers = [
        WorkerConfig(url=f"http://{prefill}", role="prefill"),
        *(WorkerConfig(url=f"http://{one}", role="decode") for one in POOL),
    ]
    settings = {"handover": {"connector": "nixl_pull"}, "policy": {"rule": "marginal_cost"}}
    async with picker_rig(workers, picker={"learn": "all"}, **settings) as rig:
        occupy(rig, 12)  # a prefill beside streams delays them, so that a pair costs less
        target = rig.system.ports._addresses[0].partition("://")[2]
        fixture = Fixture(
            target,
            endpoints=POOL,
            prefill=(prefill,),
            model="m",
            profiles=frozenset({CaseProfile.PD}),
            patience=PATIENCE,
            effort=EFFORT,
        )
        results = await run_conformance(fixture, RigHook(rig))
    assert not failed(results), failed(results)
    passed = {result.id for result in results if result.verdict is Verdict.PASS}
    assert {"J88", "K91", "K92"} <= passed, passed
