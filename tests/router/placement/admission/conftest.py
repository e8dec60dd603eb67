from random import Random

import pytest

from backends.worker import Endpoint
from policies.registry import build_policy
from policies.spec import PolicySpec
from router.config.model import HealthConfig
from router.placement.admission.admission import Admission
from router.placement.core import DecisionCore
from router.placement.fleet.fleet import Fleet
from router.placement.request import Request, Usage
from router.placement.tickets import Ticket
from router.residency.residency_map import ResidencyMap
from tests.router.placement.conftest import make_facts, make_prompt


class AdmissionRig:
    """Admission over a fleet whose workers do only what the test says."""

    def __init__(self, classes, workers=1, models=("m",), preempts=False, **core):
        residency = ResidencyMap()
        self.fleet = Fleet(HealthConfig(), residency)
        spec = PolicySpec("lpwl")
        self.core = DecisionCore(self.fleet, residency, build_policy(spec, Random(0)), spec=spec, **core)
        for number in range(workers):
            endpoint = self.fleet.add(Endpoint("http", "127.0.0.1", 9000 + number), 0.0)
            self.fleet.probe_succeeded(endpoint.id, make_facts(models=models, events=False), 0.0)
        core_ = self.core
        self.admission = Admission(
            classes,
            core_.dispatcher,
            self.fleet,
            core_.loads,
            core_.tickets,
            Random(0),
            self._leaves if preempts else None,
        )
        self.bound = set()
        """Requests whose answer comes while they are asked to give way."""
        self.asked_to_leave = []
        self.starts = {}
        self.requests, self.claims, self.tickets, self.answers = {}, {}, {}, {}
        self.now_s = 0.0

    def ask(self, name, claim, tokens=2_000, model="m", arrived_s=None, **request):
        start = self.starts.setdefault(name, len(self.starts))  # no two names have blocks in common
        prompt = make_prompt([start * 100_000 + place for place in range(tokens)])
        arrived_s = self.now_s if arrived_s is None else arrived_s
        self.requests[name] = Request(name, "/v1/completions", model, prompt, prompt.tokens, arrived_s, **request)
        self.claims[name] = claim
        return self._ask(name)

    def _ask(self, name):
        answer = self.answers[name] = self.admission.ask(name, self.requests[name], self.claims[name], self.now_s)
        if isinstance(answer, Ticket):
            self.tickets[name] = answer
        return answer

    def _leaves(self, sent, left):
        self.asked_to_leave.append(sent.item)
        if sent.item in self.bound:
            return False
        del self.tickets[sent.item]
        left(not sent.begun)
        return True

    def first_token(self, name):
        self.core.tickets.first_token(self.tickets[name], self.now_s)

    def end(self, name, tokens=10):
        self.core.tickets.first_token(self.tickets[name], self.now_s)
        self.core.tickets.finished(self.tickets.pop(name), Usage(None, tokens), self.now_s)

    def turn(self):
        """Give a turn; return the requests that went to a worker, in order."""
        before = list(self.tickets)
        self.admission.turn(self.now_s, self._ask)
        return [name for name in self.tickets if name not in before]

    def leave(self, name):
        return self.admission.leave(name, self.now_s) is not None

    def drain(self):
        """End one request after the other; return the order in which those that waited were sent."""
        order = []
        while self.tickets:
            self.now_s += 0.1
            self.end(next(iter(self.tickets)))
            order += self.turn()
        return order


@pytest.fixture
def make_admission():
    return AdmissionRig
