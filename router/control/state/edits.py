"""The changes that operators make, each as a function from live settings to live settings."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from router.config.model import PolicyConfig, RouteConfig, WorkerConfig
from router.control.state.desired_state import LiveSettings, worker_id
from router.control.state.effective import keeping_wrappers
from router.control.state.named_settings import POLICIES, WORKERS, Edit


class WorkerKnownError(ValueError):
    """There is a worker with that id already."""


def add_worker(worker: WorkerConfig) -> Edit:
    """Add a worker. Raises `WorkerKnownError`."""

    def edit(settings: LiveSettings) -> LiveSettings:
        name = worker_id(worker)
        if name in settings.workers:
            raise WorkerKnownError(name)
        return replace(settings, workers={**settings.workers, name: worker})

    return edit


remove_worker, change_worker = WORKERS.remove, WORKERS.change


def set_maintenance(name: str, maintenance: bool, migrate_after_s: float | None = None) -> Edit:
    """Drain a worker, or undrain it. Raises `NameUnknownError`."""
    return WORKERS.change(name, {"maintenance": maintenance, "migrate_after_s": migrate_after_s})


def set_maintenance_of(names: Collection[str], maintenance: bool, *, others: bool | None = None) -> Edit:
    """Drain or undrain these workers, of those that there are; with `others`, the others too."""

    def edit(settings: LiveSettings) -> LiveSettings:
        workers = {
            name: each
            if wanted is None or wanted is each.maintenance
            else replace(each, maintenance=wanted, migrate_after_s=None)
            for name, each in settings.workers.items()
            for wanted in [maintenance if name in names else others]
        }
        return replace(settings, workers=workers)

    return edit


def set_policy(policy: PolicyConfig) -> Edit:
    """Use another policy. The seed stays, and so do hold and lanes where the policy says nothing of them."""

    def edit(settings: LiveSettings) -> LiveSettings:
        return replace(settings, policy=_in_place_of(settings.policy, policy))

    return edit


def set_named_policy(name: str, policy: PolicyConfig) -> Edit:
    """Add a further policy, or change the one of that name, as `set_policy` does."""

    def edit(settings: LiveSettings) -> LiveSettings:
        before = settings.policies.get(name)
        chosen = policy if before is None else _in_place_of(before, policy)
        return replace(settings, policies={**settings.policies, name: chosen})

    return edit


remove_named_policy = POLICIES.remove


def _in_place_of(before: PolicyConfig, policy: PolicyConfig) -> PolicyConfig:
    return replace(keeping_wrappers(policy, before), seed=before.seed)


def set_routes(routes: Sequence[RouteConfig]) -> Edit:
    return lambda settings: replace(settings, routes=tuple(routes))
