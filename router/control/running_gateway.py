"""The parts of a gateway process that the desired state is about: fleet, watches, keys, policies and models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from msgspec.structs import replace

from policies.registry import build_policy
from policies.view import Policy
from router.config.model import Config, ModelConfig, PolicyConfig, TenantConfig, WorkerConfig
from router.control.change import NotAppliedError
from router.control.state.desired_state import LiveLimits, LiveSettings, endpoint_of, live_settings, worker_id
from router.control.state.routing import BuiltRouting, Failed, ProcessShare, Routing
from router.placement.fleet.fleet import Fleet
from router.placement.named_policies import NamedPolicies
from router.placement.policies.chosen_policy import spec_of
from router.requests.front import Front
from router.tokenization.local.sources import ReadFiles
from router.tokenization.prompt_identifier import PromptIdentifier
from router.workers.watcher import Watcher


class RunningGateway:
    """Change one process. Every call takes effect at once, between two events of the event loop.

    `share` says which of several processes it is. `failed` is called when a policy fails.
    """

    def __init__(
        self,
        config: Config,
        fleet: Fleet,
        watcher: Watcher,
        gateway: Front,
        identity: PromptIdentifier,
        policies: NamedPolicies,
        now_s: Callable[[], float],
        share: ProcessShare,
        failed: Failed,
    ) -> None:
        self._fleet = fleet
        self._watcher = watcher
        self._gateway = gateway
        self._identity = identity
        self._policies = policies
        self._now_s = now_s
        self._share = share
        self._failed = failed
        self._limits = config.limits
        self._settings = live_settings(config)
        self._workers = self._settings.workers
        self._prepared: tuple[Mapping[str, ModelConfig], ReadFiles] = {}, {}
        """The settings of models that `prepare` saw last, and their files that are not in use."""

    def start(self) -> None:
        """Add the configured workers to the fleet and watch them."""
        for name, worker in self._workers.items():
            self._fleet.add(endpoint_of(worker), self._now_s(), worker.labels)
            describe(self._fleet, name, worker)
        self._watcher.start()

    def opened(self) -> None:
        """Pass on the keys of workers that were added before the gateway opened."""
        for name, worker in self._workers.items():
            self._gateway.learn_worker_key(name, worker.api_key)

    @property
    def settings(self) -> LiveSettings:
        """What the process has become: a worker that is drained has `maintenance`, whatever its settings were."""
        workers = {
            name: replace(worker, maintenance=endpoint.draining)
            for name, worker in self._workers.items()
            if (endpoint := self._fleet.get(name)) is not None
        }
        return replace(self._settings, workers=workers)

    def build_policy(self, policy: PolicyConfig) -> Policy:
        return build_policy(spec_of(policy), Random(self._share.seeded(policy).seed))

    def use_policy(self, policy: PolicyConfig, built: Policy) -> None:
        """Use `built` from the next decision on."""
        self._policies.default.adopt(built, spec_of(policy))
        self._settings = replace(self._settings, policy=policy)

    def build_routing(self, routing: Routing, policy: PolicyConfig) -> BuiltRouting:
        return self._share.built(routing, policy, self._failed)

    def use_routing(self, routing: Routing, built: BuiltRouting) -> None:
        """Use other policies and routes from the next request on. Policies that stay keep their state."""
        self._policies.adopt(built.named, built.shadows)
        self._gateway.use_routes(built.routes)
        self._settings = replace(self._settings, policies=dict(routing.policies), routes=routing.routes)

    async def prepare(self, settings: LiveSettings) -> None:
        """Read the files of models that the settings name, so that `use_models` is quick.

        Raises:
            NotAppliedError: a file cannot be read.
        """
        if settings.models in (self._settings.models, self._prepared[0]):
            return
        try:
            self._prepared = settings.models, await self._identity.sources.read(settings.models)
        except Exception as error:  # a folder that is found by a model's name may contain anything
            raise NotAppliedError(f"{type(error).__name__}: {error}") from error

    def use_models(self, models: dict[str, ModelConfig]) -> None:
        (_, read), self._prepared = self._prepared, ({}, {})
        self._watcher.test_again(self._identity.sources.use(models, read))
        self._gateway.use_models(models)
        self._settings = replace(self._settings, models=models)

    def use_callers(self, tenants: dict[str, TenantConfig], limits: LiveLimits) -> None:
        """Use other tenants and limits from the next request on. Limits that stay keep their fill."""
        whole = replace(self._limits, tenants=limits.tenants, keys=limits.keys)
        self._gateway.use_callers(self._share.tenants(tenants, whole.max_body_bytes), whole)
        self._settings = replace(self._settings, tenants=tenants, limits=limits)

    def add_worker(self, worker: WorkerConfig) -> None:
        """Add an endpoint to the fleet and watch it."""
        name = worker_id(worker)
        self._fleet.add(endpoint_of(worker), self._now_s(), worker.labels)
        describe(self._fleet, name, worker)
        self._gateway.learn_worker_key(name, worker.api_key)
        self._watcher.watch(name, worker)
        self._workers[name] = worker

    def remove_worker(self, name: str) -> None:
        """Remove an endpoint. Responses that have started continue; other requests move to another worker if they
        can.
        """
        del self._workers[name]
        self._watcher.forget(name)
        self._gateway.learn_worker_key(name, None)
        self._fleet.remove(name)

    def change_worker(self, worker: WorkerConfig) -> None:
        """Change a worker in place. Another scheme in the URL, or another Host, is another endpoint."""
        name = worker_id(worker)
        old, self._workers[name] = self._workers[name], worker
        if endpoint_of(old) != endpoint_of(worker):
            self.remove_worker(name)
            self.add_worker(worker)
            return
        describe(self._fleet, name, worker)
        if (old.api_key, old.kv_events) != (worker.api_key, worker.kv_events):
            self._gateway.learn_worker_key(name, worker.api_key)
            self._watcher.watch(name, worker)


def describe(fleet: Fleet, name: str, worker: WorkerConfig) -> None:
    """Bring a worker of the fleet to its settings: its description, and whether it is drained."""
    fleet.describe(name, worker.labels, worker.weight, worker.name, worker.role)
    if worker.maintenance:
        fleet.drain(name, worker.migrate_after_s)
    else:
        fleet.undrain(name)
