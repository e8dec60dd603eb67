import pytest
from msgspec.structs import replace

from policies.registry import PolicyError
from router.config.model import Config, PolicyConfig, WorkerConfig
from router.control.control import Control
from router.control.reconciler import Reconciler
from router.control.start import Sources, initial
from router.control.state.desired_state import live_settings, worker_id


class Process:
    """A process in memory in place of `RunningGateway`, which fails where it should."""

    def __init__(self, config: Config) -> None:
        self.settings = live_settings(config)
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
        assert built is policy
        self._use(policy=policy)

    def build_routing(self, routing, policy):
        for each in routing.policies.values():
            self.build_policy(each)
        return routing

    def use_routing(self, routing, built):
        assert built is routing
        self._use(policies=dict(routing.policies), routes=routing.routes)

    def use_models(self, models):
        self._use(models=models)

    def use_callers(self, tenants, limits):
        self._use(tenants=tenants, limits=limits)

    def add_worker(self, worker):
        assert worker_id(worker) not in self.settings.workers
        self._use(workers={**self.settings.workers, worker_id(worker): worker})

    def remove_worker(self, name):
        self._use(workers={key: each for key, each in self.settings.workers.items() if key != name})

    def change_worker(self, worker):
        assert worker_id(worker) in self.settings.workers
        self._use(workers={**self.settings.workers, worker_id(worker): worker})

    def _use(self, **changes):
        self.calls += 1
        if self.calls == self.breaks_at:
            raise RuntimeError("broken")
        self.settings = replace(self.settings, **changes)


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
