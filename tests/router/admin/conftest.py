import random
from types import SimpleNamespace

import httpx
import msgspec
import pytest
from msgspec.structs import replace

from backends.worker import RankCache, ServedModel, WorkerFacts, parse_endpoint
from policies.registry import build_policy
from policies.spec import PolicySpec
from policies.view import WorkerId
from router.admin.app import build_admin
from router.admin.replies import Reply
from router.admin.system import TakeoverState, WorkerNow
from router.config.model import Config, HealthConfig, WorkerConfig
from router.control.control import Control
from router.control.reconciler import Reconciler
from router.control.running_gateway import RunningGateway
from router.control.start import Sources, initial
from router.control.state.desired_state import worker_id
from router.control.state.edits import add_worker
from router.control.state.routing import ProcessShare
from router.diagnosis.diagnose import diagnose
from router.diagnosis.in_force import InForce
from router.diagnosis.measurements import Measurements
from router.errors import ErrorKind, RequestError
from router.placement.core import DecisionCore
from router.placement.fleet.fleet import Fleet
from router.placement.request import Request, Usage
from router.requests.preview import PreviewedRequest
from router.residency.prompt import Prompt, PromptSource
from router.residency.residency_map import ResidencyMap
from router.telemetry.history import TrafficHistory
from router.telemetry.logs import set_log_level
from router.workers.operations import WorkerOutcome

BLOCK = 16
MODEL = "m"


def chain(name: str, block_tokens: int, tokens: int) -> list[int]:
    return [hash((name, block_tokens, index)) & (2**64 - 1) for index in range(tokens // block_tokens)]


class FakeSystem:
    """The composition root without sockets: real fleet, residency map and dispatcher on a clock that stands still."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.residency = ResidencyMap()
        self.fleet = Fleet(HealthConfig(), self.residency, connector=config.handover.connector)
        policy = build_policy(PolicySpec("marginal_cost"), random.Random(0))
        self.core = DecisionCore(
            self.fleet,
            self.residency,
            policy,
            spec=PolicySpec("marginal_cost", {}),
            decisions_kept=50,
            handover=config.handover,
        )
        self.measurements = Measurements()
        self.core.tickets.traffic = self.measurements
        self.traffic = TrafficHistory()
        self.identity = SimpleNamespace(
            describe=lambda model: f"ids of {model} from a test",
            sources=SimpleNamespace(read=self.read_models, use=lambda models, read: frozenset()),
        )
        self.watcher = SimpleNamespace(
            statistics=self._watches, watch=self.watch, forget=self.forget, test_again=lambda models: None
        )
        self.gateway = self
        self.accepting = True
        self.replica = None
        self.requests: dict[str, int] = {}
        self.takeover_state = TakeoverState.NONE
        self.followed = True
        self.clock_s = 1_000.0
        self.watched: dict[str, object] = {}
        self.settings: Config | Exception = config
        """The settings that a reload reads."""
        self.keys: dict[str, str | None] = {}
        self.running = RunningGateway(
            config,
            self.fleet,
            self.watcher,
            self,
            self.identity,
            self.core.policies,
            self.now_s,
            ProcessShare(),
            lambda *_: None,
        )
        self.reconciler = Reconciler(self.running)
        self.discovery = None
        self.control = Control(Sources(config, self.read), initial(config), self.reconcile)
        self.operated: list = []
        """Operations on workers: what, on which, and who was drained meanwhile."""
        self.outcomes: dict[str, WorkerOutcome] = {}
        self.models_of: dict[str, list[str]] = {}
        self.fallbacks: list[Request] = []
        """The same request for the fallbacks of its model."""
        self.asked: list[tuple[str, dict[str, str], bytes]] = []

    def _watches(self):
        subscription = {
            "endpoint": "tcp://a:5557",
            "linked": True,
            "links": 1,
            "batches": 2,
            "bytes": 3,
            "malformed": 0,
            "replaying": False,
            "lag_s": 0.001,
        }
        watch = {
            "up": True,
            "restarts": 4,
            "self_tests": {"a:1": {"verdict": "exact", "reason": "predicted 32 of 40, 32 reported"}},
            "subscriptions": {"a:1": subscription},
        }
        return {"pump": {}, "endpoints": {"a:1": watch}}

    def use_routes(self, routes):
        self.routes = routes

    async def read_models(self, models):
        return {}

    def use_models(self, models):
        self.models = models

    def use_callers(self, tenants, limits):
        self.tenants, self.limited = tenants, limits

    async def diagnosis(self):
        return diagnose(self.measurements.measured(self.clock_s), self.config.diagnosis, InForce())

    def in_flight(self):
        return self.requests

    async def now_at(self, worker_id):
        endpoint = self.fleet.get(worker_id)
        if endpoint is None:
            return None
        in_flight = self.requests.get(worker_id, 0)
        quiet = self.followed and not in_flight and self.takeover_state is TakeoverState.NONE
        return WorkerNow(endpoint.state, endpoint.reason, endpoint.draining, in_flight, quiet)

    async def log_from(self, level):
        set_log_level(level)
        return ()

    def now_s(self) -> float:
        return self.clock_s

    def read(self):
        if isinstance(self.settings, Exception):
            raise self.settings
        return self.settings

    def learn_worker_key(self, endpoint_id, key):
        self.keys[endpoint_id] = key

    def watch(self, endpoint_id, worker):
        self.watched[endpoint_id] = worker.kv_events

    def forget(self, endpoint_id):
        del self.watched[endpoint_id]

    async def reconcile(self, state):
        self.reconciler.reconcile(state)

    async def preview(self, path, headers, body, key_name=None):
        self.asked.append((path, dict(headers), body))
        if not body.startswith(b"{"):
            raise RequestError(ErrorKind.INVALID_JSON, "not JSON, as the gateway would say")
        return PreviewedRequest(self.request("explained"), iter(self.fallbacks), body)

    def request(self, request_id: str, tokens: int = 100) -> Request:
        prompt = Prompt(tokens, PromptSource.RENDERED, lambda block: chain(request_id, block, tokens))
        return Request(request_id, "/v1/chat/completions", MODEL, prompt, tokens, self.clock_s)

    async def operate(self, wanted, workers):
        self.operated.append((wanted, list(workers), self.maintained()))
        return [self.outcomes.get(worker, WorkerOutcome(worker, "done")) for worker in workers]

    async def serving(self, model):
        return self.models_of.get(model, [])

    def maintained(self):
        return [endpoint.id for endpoint in self.fleet.endpoints if endpoint.draining]

    async def exposition(self, accept=""):
        return b"# HELP warmroute_up x\n", "text/plain; version=1.0.0; charset=utf-8"

    # for tests

    def join(self, url: str) -> str:
        """Add a worker to the desired state and let a probe succeed."""
        worker = WorkerConfig(url=url)
        state = self.control.state
        if worker_id(worker) not in state.settings.workers:
            changed = replace(state, settings=add_worker(worker)(state.settings))
            self.control.stored = replace(self.control.stored, state=changed)
            self.running.add_worker(worker)
        endpoint = self.fleet.get(parse_endpoint(url).authority)
        facts = WorkerFacts(
            version="0.33.0", models=(ServedModel(MODEL, max_model_len=4096),), caches={0: RankCache(BLOCK, 100, True)}
        )
        self.fleet.probe_succeeded(endpoint.id, facts, self.clock_s)
        return endpoint.id

    def serve(self, request_id: str = "r", tokens: int = 100):
        """Place a request and let it finish; a token of its prompt takes a millisecond."""
        ticket = self.core.dispatcher.dispatch(self.request(request_id, tokens), self.clock_s)
        self.core.tickets.first_token(ticket, self.clock_s + tokens / 1_000)
        self.core.tickets.finished(ticket, Usage(tokens, 5, 0), self.clock_s + tokens / 1_000 + 0.5)
        return WorkerId(ticket.candidate.id)


def over_processes(operation, documents, **query):
    """Return what a supervisor answers if its processes give these documents."""
    replies = {number: Reply(200, msgspec.json.encode(document)) for number, document in enumerate(documents)}
    return operation.processes.answer(SimpleNamespace(query=query), replies).content


@pytest.fixture
def config() -> Config:
    return Config(admin_hosts=("router.example",))


@pytest.fixture
def system(config) -> FakeSystem:
    return FakeSystem(config)


@pytest.fixture
async def client(system):
    transport = httpx.ASGITransport(build_admin(system))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8001") as client:
        yield client


@pytest.fixture
def problem():
    """Check that an answer is a problem document and give its code and detail."""

    def check(response: httpx.Response, status: int) -> tuple[str, str]:
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/problem+json"
        document = response.json()
        assert document.keys() == {"type", "title", "status", "detail", "code"}
        assert document["status"] == status
        assert document["type"] == f"urn:warmroute:problem:{document['code']}"
        return document["code"], document["detail"]

    return check
