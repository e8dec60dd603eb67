"""The changes that operators make, each as a function from live settings to live settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from router.config.model import PolicyConfig, RouteConfig, WorkerConfig
from router.control.state.desired_state import LiveSettings, worker_id
from router.control.state.effective import keeping_wrappers

Edit = Callable[[LiveSettings], LiveSettings]


class PolicyUnknownError(LookupError):
    """There is no further policy with that name."""


class WorkerUnknownError(LookupError):
    """There is no worker with that id."""


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


def remove_worker(name: str) -> Edit:
    """Remove a worker. Raises `WorkerUnknownError`."""

    def edit(settings: LiveSettings) -> LiveSettings:
        _find(settings, name)
        return replace(settings, workers={key: each for key, each in settings.workers.items() if key != name})

    return edit


def change_worker(name: str, patch: Mapping[str, Any]) -> Edit:
    """Change settings of a worker by a merge patch (RFC 7396): null takes a setting back to its default.

    Raises `WorkerUnknownError`, and `msgspec.ValidationError` if a value has the wrong form.
    """

    def edit(settings: LiveSettings) -> LiveSettings:
        worker = msgspec.convert(merged(msgspec.to_builtins(_find(settings, name)), patch), WorkerConfig)
        return replace(settings, workers={**settings.workers, name: worker})

    return edit


def set_maintenance(name: str, maintenance: bool) -> Edit:
    """Drain a worker, or undrain it. Raises `WorkerUnknownError`."""

    def edit(settings: LiveSettings) -> LiveSettings:
        worker = replace(_find(settings, name), maintenance=maintenance)
        return replace(settings, workers={**settings.workers, name: worker})

    return edit


def set_maintenance_of(names: Collection[str], maintenance: bool) -> Edit:
    """Drain or undrain these workers, of those that there are."""

    def edit(settings: LiveSettings) -> LiveSettings:
        workers = {
            name: replace(each, maintenance=maintenance) if name in names else each
            for name, each in settings.workers.items()
        }
        return replace(settings, workers=workers)

    return edit


def drain_only(names: Collection[str]) -> Edit:
    def edit(settings: LiveSettings) -> LiveSettings:
        workers = {name: replace(each, maintenance=name in names) for name, each in settings.workers.items()}
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


def remove_named_policy(name: str) -> Edit:
    """Remove a further policy. Raises `PolicyUnknownError`."""

    def edit(settings: LiveSettings) -> LiveSettings:
        if name not in settings.policies:
            raise PolicyUnknownError(name)
        return replace(settings, policies={key: each for key, each in settings.policies.items() if key != name})

    return edit


def _in_place_of(before: PolicyConfig, policy: PolicyConfig) -> PolicyConfig:
    return replace(keeping_wrappers(policy, before), seed=before.seed)


def set_routes(routes: Sequence[RouteConfig]) -> Edit:
    return lambda settings: replace(settings, routes=tuple(routes))


def merged(tree: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree of settings after a merge patch (RFC 7396)."""
    result = dict(tree)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            below = result.get(key)
            result[key] = merged(below if isinstance(below, Mapping) else {}, value)
        else:
            result[key] = value
    return result


def _find(settings: LiveSettings, name: str) -> WorkerConfig:
    worker = settings.workers.get(name)
    if worker is None:
        raise WorkerUnknownError(name)
    return worker
