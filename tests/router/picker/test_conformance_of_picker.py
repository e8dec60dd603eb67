"""Warmroute's picker passes the conformance suite. The hook changes objects of Kubernetes, loads and the process."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from backends.discovery.kubernetes import reflector
from backends.discovery.kubernetes.objects import ACTIVE_PORTS
from backends.worker import LoadReport, ServedModel, WorkerFacts
from router.config.model import WorkerConfig
from router.picker.conformance.fixture import CaseProfile, Effort, Fixture, Patience
from router.picker.conformance.hook import ALL, ActionNotOffered, HookAction
from router.picker.conformance.outcome import Verdict
from router.picker.conformance.run import run_conformance
from router.picker.pools.kubernetes import OBJECTIVES, REWRITES
from router.placement.request import Request
from tests.backends.discovery.kubernetes.api_server import ApiServerStub
from tests.backends.discovery.kubernetes.conftest import pod
from tests.router.picker.pools.test_kubernetes import objective, rewrite, rule
from tests.support.gateway_rig import FACTS
from tests.support.gateway_stream import picker_rig
from tests.support.waiting import eventually

pytest.importorskip("grpc")

POOL = ("10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "[fd00::1]:8000")
ADAPTER, AT = "adapter", POOL[2]
EFFORT = Effort(streams=200, resets=200, rewrites=300, large_body_bytes=2_000_000)
PATIENCE = Patience(answer_s=10.0, settle_s=0.5, pick_p99_s=2.0)
MODELS = (ServedModel("m"), ServedModel("n"))


def facts_of(endpoint):
    models = (*MODELS, ServedModel(ADAPTER, parent="m")) if endpoint == AT else MODELS
    return WorkerFacts(version=FACTS.version, models=models, caches=FACTS.caches)


class RigHook:
    """Changes a picker's load and process, and reads its ledger."""

    def __init__(self, rig):
        self.rig, self.fleet = rig, rig.fleet

    async def run(self, action, endpoint):
        meant = [one.id for one in self.fleet.endpoints] if endpoint == ALL else [endpoint]
        if action is HookAction.LEDGER:
            return str(sum(self.rig.load.get(one, 0) for one in meant))
        if action is HookAction.ERRORS:
            counted = self.rig.system.registry.counter("attempt_failures").values
            return str(sum(count for (worker, _), count in counted.items() if worker in meant))
        if action is HookAction.DRAIN:
            return self._drain()
        for one in meant:
            self.change(action, one)
        return ""

    def _drain(self):
        """Do what the process does after SIGTERM."""
        self.rig.picker.drain()
        asyncio.get_running_loop().call_later(1.0, lambda: asyncio.ensure_future(self.rig.picker.stop_accepting()))
        return ""

    def change(self, action, endpoint):
        if action is HookAction.UNSYNC:
            self.rig.eject(endpoint)
        elif action is HookAction.SYNC:
            self.rig.ready(endpoint, facts=facts_of(endpoint))
        elif action in (HookAction.SATURATE, HookAction.RELEASE):
            load = LoadReport(rank=0, running=9, waiting=9 if action is HookAction.SATURATE else 0, kv_usage=0.1)
            self.fleet.load_reported(endpoint, load, self.rig.system.now_s())
        else:
            raise ActionNotOffered


class KubernetesHook(RigHook):
    """Changes the pods of an InferencePool, too. The two ports of one address are those of one pod."""

    def __init__(self, rig, api):
        super().__init__(rig)
        self.api = api
        self.ports = {}
        """By address: whether the pod serves each port."""
        for endpoint in POOL:
            self.ports.setdefault(endpoint.rpartition(":")[0], {})[endpoint.rpartition(":")[2]] = True

    def put_all(self):
        for address in self.ports:
            self.put(address)

    def put(self, address, **state):
        active = ",".join(port for port, on in self.ports[address].items() if on)
        name = f"pod-{sorted(self.ports).index(address)}"
        if active:
            annotations = {ACTIVE_PORTS: active}
            self.api.put("pods", pod(name, address.strip("[]"), annotations=annotations, **state))
        else:
            self.api.delete("pods", name)

    def change(self, action, endpoint):
        address, _, port = endpoint.rpartition(":")
        if action in (HookAction.NOT_READY, HookAction.READY):
            self.put(address, ready=action is HookAction.READY)
        elif action is HookAction.TERMINATE:
            self.put(address, going=True)
        elif action in (HookAction.REMOVE, HookAction.NARROW, HookAction.ADD, HookAction.WIDEN):
            self.ports[address][port] = action in (HookAction.ADD, HookAction.WIDEN)
            self.put(address)
        else:
            super().change(action, endpoint)


@asynccontextmanager
async def kubernetes():
    """Yield an API server with one InferencePool, an objective for each priority, and a rewrite of models."""
    api = ApiServerStub()
    api.objects |= {"pods": {}, "inferencepools": {}, OBJECTIVES: {}, REWRITES: {}}
    await api.start()
    spec = {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 8000}, {"number": 8001}]}
    api.put("inferencepools", {"metadata": {"name": "llama"}, "spec": spec})
    api.put(OBJECTIVES, objective("batch", -1))
    api.put(OBJECTIVES, objective("chat", 10))
    api.put(REWRITES, rewrite("canary", rule("chat", m=3, n=1)))
    yield api
    await api.stop()


@asynccontextmanager
async def picker_of_pool(**settings):
    """Yield a picker whose workers are pods, and a hook. A worker is ready as soon as its pod is."""
    async with kubernetes() as api:
        source = {"kubernetes": {"pool": "llama", "namespace": "default", "api_url": api.url}}
        async with picker_rig((), discovery={"sources": {"pool": source}}, **settings) as rig:
            rig.system.watcher.watch = lambda name, _: rig.ready(name, facts=facts_of(name))
            hook = KubernetesHook(rig, api)
            hook.put_all()
            await eventually(lambda: {one.id for one in rig.fleet.endpoints} == set(POOL))
            yield rig, hook


SKIPPED = {
    "D45": "the picker names one endpoint by default",
    "F60": "without classes no request waits for load",
    "F61": "as F60",
    "G71": "the picker counts no tokens by endpoint",
    "H77": "TLS has a test of its own",
    "J89": "for pickers that ignore objectives",
}


def failed(results):
    return {result.id: result.detail for result in results if result.verdict is Verdict.FAIL}


@pytest.mark.slow
async def test_all_profiles_but_pairs(monkeypatch):
    monkeypatch.setattr(reflector, "FIRST_PAUSE_S", 0.01)
    settings = {"timeouts": {"queue_s": 0.0}, "auth": {"allow": ("priority",)}}
    profiles = frozenset(CaseProfile) - {CaseProfile.PD}
    async with picker_of_pool(picker={"learn": "all", "scores": True}, **settings) as (rig, hook):
        target = rig.system.ports._addresses[0].partition("://")[2]
        fixture = Fixture(
            target,
            endpoints=POOL,
            model="m",
            sheddable="batch",
            urgent="chat",
            adapters={ADAPTER: AT},
            rewrites={"chat": {"m": 3, "n": 1}},
            profiles=profiles,
            patience=PATIENCE,
            effort=EFFORT,
        )
        results = await run_conformance(fixture, hook)
    assert failed(results).keys() <= {"A11"}, failed(results)  # the rule of the rig looks at load alone
    skipped = {result.id: result.detail for result in results if result.verdict is Verdict.SKIP}
    pairs = {result.id for result in results if result.case.profile is CaseProfile.PD}
    assert skipped.keys() - pairs <= SKIPPED.keys(), skipped


async def test_lists_of_endpoints_and_a_client_s_objective():
    picker = {"endpoints": 2, "objectives": {"batch": -1}}
    async with picker_rig(POOL, picker=picker) as rig:
        target = rig.system.ports._addresses[0].partition("://")[2]
        fixture = Fixture(target, endpoints=POOL, model="m", sheddable="batch", ignores_objectives=True)
        results = await run_conformance(fixture, RigHook(rig), ("A7", "A9", "D43", "D45", "J89"))
    assert {result.verdict for result in results} == {Verdict.PASS}, results


class ClassesHook(RigHook):
    """Saturates each worker with a long prompt, behind which the requests of all classes wait."""

    def __init__(self, rig):
        super().__init__(rig)
        self.running = []

    def change(self, action, endpoint):
        super().change(action, endpoint)
        now_s, dispatcher, tickets = self.rig.system.now_s(), self.rig.core.dispatcher, self.rig.core.tickets
        if action is HookAction.SATURATE:
            asked = Request(f"{endpoint} {now_s}", "/v1/completions", "m", None, 200_000, now_s)
            self.running.append(dispatcher.dispatch(asked, now_s, within={endpoint}))
        elif action is HookAction.RELEASE and self.running:
            tickets.cancelled(self.running.pop(), now_s)


@pytest.mark.slow
async def test_with_classes_requests_wait_and_the_urgent_one_goes_first():
    classes = {"urgent": {"share": 1.0}, "default": {"share": 0.0}}
    picker = {"learn": "all", "pick_s": 8.0, "objectives": {"batch": -1}}
    async with picker_rig(POOL, classes=classes, picker=picker, auth={"allow": ("priority",)}) as rig:
        target = rig.system.ports._addresses[0].partition("://")[2]
        fixture = Fixture(target, endpoints=POOL, model="m", sheddable="batch", urgent="urgent", patience=PATIENCE)
        shedding = tuple(f"F{number}" for number in range(55, 63))
        results = await run_conformance(fixture, ClassesHook(rig), shedding)
    assert {result.verdict for result in results} == {Verdict.PASS}, [(one.id, one.detail) for one in results]


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
