import pytest

from policies.registry import PolicyError
from router.config.model import Config, PolicyConfig, WorkerConfig
from router.control.control import Control
from router.control.reconciler import Reconciler
from router.control.start import Sources, initial
from router.control.state.desired_state import LiveSettings, live_settings
from router.control.state.routing import routing_of


class Process:
    """A process in memory in place of `RunningGateway`, which fails where it should."""

    def __init__(self, config: Config) -> None:
        self.workers = live_settings(config).workers
        self.policy = config.policy
        self.routing = routing_of(config)
        self.models = config.models
        self.tenants, self.limits = live_settings(config).tenants, live_settings(config).limits
        self.calls = 0
        self.refuses = None
        """A policy that cannot be built here."""
        self.breaks_at = None
        """The number of the call that raises."""

    def build_policy(self, policy):
        if policy.rule == self.refuses:
            raise PolicyError(policy.rule, ("rule",), "no", "write another")
        return policy

    def use_policy(self, policy, built):
        self._called()
        assert built is policy
        self.policy = policy

    def build_routing(self, routing, policy):
        if self.refuses in [each.rule for each in routing.policies.values()]:
            raise PolicyError(self.refuses, ("rule",), "no", "write another")
        return routing

    def use_routing(self, routing, built):
        self._called()
        assert built is routing
        self.routing = routing

    def use_models(self, models):
        self._called()
        self.models = models

    def use_callers(self, tenants, limits):
        self._called()
        self.tenants, self.limits = tenants, limits

    def add_worker(self, worker):
        self._called()
        name = worker.url.removeprefix("http://")
        assert name not in self.workers
        self.workers = {**self.workers, name: worker}

    def remove_worker(self, name):
        self._called()
        self.workers = {key: each for key, each in self.workers.items() if key != name}

    def change_worker(self, worker):
        self._called()
        name = worker.url.removeprefix("http://")
        assert name in self.workers
        self.workers = {**self.workers, name: worker}

    @property
    def settings(self) -> LiveSettings:
        return LiveSettings(
            workers=self.workers,
            policy=self.policy,
            policies=dict(self.routing.policies),
            routes=self.routing.routes,
            models=self.models,
            tenants=self.tenants,
            limits=self.limits,
        )

    def _called(self):
        self.calls += 1
        if self.calls == self.breaks_at:
            raise RuntimeError("broken")


class Fleet:
    """Processes in memory under one control, as under a supervisor."""

    def __init__(self, config: Config, processes: int = 1, kept=None, store=None, file=None) -> None:
        first = initial(config, kept)
        self.processes = [Process(config) for _ in range(processes)]
        self.reconcilers = [Reconciler(process) for process in self.processes]
        self.read = config
        """The settings that a reload reads, or the error that it raises."""
        self.control = Control(Sources(config, self._read, store, kept, file), first, self.apply)

    def _read(self) -> Config:
        if isinstance(self.read, Exception):
            raise self.read
        return self.read

    async def apply(self, state):
        for reconciler in self.reconcilers:
            reconciler.reconcile(state)

    def agree(self) -> bool:
        wanted = self.control.state.settings
        return all(process.settings == wanted for process in self.processes)


def worker(port: int, **settings) -> WorkerConfig:
    return WorkerConfig(url=f"http://a:{port}", **settings)


@pytest.fixture
def config():
    return Config(workers=(worker(1, labels={"lane": "decode"}), worker(2)), policy=PolicyConfig(rule="lpwl"))


@pytest.fixture
def fleet(config):
    return Fleet(config)
