"""The settings with the operators' changes applied. A child that starts later starts with them."""

from __future__ import annotations

from msgspec.structs import replace

from backends.worker import parse_endpoint
from router.config.model import Config, PolicyConfig, WorkerConfig
from router.process.children.child_config import quotas_of, routes_of, share_of


class DesiredState:
    """The current fleet and policy."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.workers = {parse_endpoint(worker.url).authority: worker for worker in config.workers}
        self.drained: set[str] = set()
        self.policy = config.policy

    def add(self, worker: WorkerConfig) -> None:
        self.workers[parse_endpoint(worker.url).authority] = worker

    def remove(self, worker_id: str) -> None:
        self.workers.pop(worker_id, None)
        self.drained.discard(worker_id)

    def set_policy(self, policy: PolicyConfig) -> None:
        self.policy = policy

    def _seeded(self, process: int) -> dict[str, PolicyConfig]:
        named = self._config.policies
        return {name: replace(policy, seed=policy.seed + process) for name, policy in named.items()}

    def config_of(self, process: int, processes: int) -> Config:
        """Return the settings that a process starts with.

        Each process has its own seed. With one seed, all processes would draw the same workers at the same time.
        """
        return replace(
            self._config,
            workers=tuple(self.workers.values()),
            policy=replace(self.policy, seed=self.policy.seed + process),
            limits=share_of(self._config.limits, process, processes),
            policies=self._seeded(process),
            routes=routes_of(self._config.routes, process, processes),
            tenants=quotas_of(self._config.tenants, processes, self._config.limits.max_body_bytes),
        )
