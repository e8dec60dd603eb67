"""Discovered workers in the desired state: under the settings of the start, which are under the admin API's changes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from router.config.model import WorkerConfig
from router.control.state.desired_state import DesiredState, FoundWorker, LiveSettings
from router.control.state.differences import applied, differences
from router.control.state_file import Stored

DiscoveredWorkers = Mapping[str, FoundWorker]
"""Workers that sources name, by id."""


def based(file: LiveSettings, discovered: DiscoveredWorkers) -> LiveSettings:
    """Return the settings that the API's changes are differences from."""
    if not discovered:
        return file
    return replace(file, workers={**{name: one.worker for name, one in discovered.items()}, **file.workers})


def counting(
    found: DiscoveredWorkers, file: LiveSettings, base: LiveSettings, settings: LiveSettings
) -> dict[str, FoundWorker]:
    """Return the workers of `found` that count: those that neither `file` names nor the API has added.

    A worker of `settings` that is not in their `base` was added by the API. A worker whose name another one has is left
    without a name; one that is leaving gives its name up.
    """
    added = settings.workers.keys() - base.workers.keys()
    counts = {name: one for name, one in found.items() if name not in file.workers and name not in added}
    renamed = {
        name for name, one in settings.workers.items() if name not in added and one.name != base.workers[name].name
    }
    taken = {one.name for one in file.workers.values()} | {settings.workers[name].name for name in added | renamed}
    for name, one in sorted(counts.items(), key=lambda item: item[1].leaving):
        if one.worker.name is not None and one.worker.name in taken:
            counts[name] = replace(one, worker=replace(one.worker, name=None))
        taken.add(one.worker.name)
    return counts


def rediscovered(state: DesiredState, file: LiveSettings, discovered: DiscoveredWorkers) -> DesiredState:
    """Return the state with other discovered workers. A change of the API to one lasts as long as a source names it."""
    old, new = based(file, state.discovered).workers, based(file, discovered).workers
    workers = {}
    for name, worker in state.settings.workers.items():
        if name not in old:
            workers[name] = worker
        elif name in new:
            workers[name] = _merged(old[name], worker, new[name])
    workers |= {name: worker for name, worker in new.items() if name not in old}
    return replace(
        state,
        settings=replace(state.settings, workers=workers),
        discovered=dict(discovered),
        discovery=state.discovery + 1,
    )


def lasting(stored: Stored) -> Stored:
    """Return what is kept on disk: of the discovered workers, only those that the API has changed or removed."""
    state = stored.state
    workers, discovered = state.settings.workers, state.discovered
    if not discovered:
        return stored
    changed = {name: replace(one, leaving=False) for name, one in discovered.items() if workers.get(name) != one.worker}
    kept = {name: worker for name, worker in workers.items() if name not in discovered or name in changed}
    settings = replace(state.settings, workers=kept)
    return replace(stored, state=replace(state, settings=settings, discovered=changed, discovery=0))


def _merged(old: WorkerConfig, worker: WorkerConfig, new: WorkerConfig) -> WorkerConfig:
    """Return `new` with what `worker` differs in from `old`."""
    if worker == old:
        return new
    changes = differences(msgspec.to_builtins(old), msgspec.to_builtins(worker))
    return msgspec.convert(applied(msgspec.to_builtins(new), changes), WorkerConfig)
