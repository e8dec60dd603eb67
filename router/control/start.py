"""The state that a gateway starts with: its settings, and what an earlier process kept or handed over."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from router.config.model import Config
from router.config.problems import Check, ConfigError, Problem
from router.config.tree import dotted
from router.control.discovered import based, counting
from router.control.state.desired_state import DesiredState, LiveSettings, live_settings, tree_of, with_live_settings
from router.control.state.differences import SettingDifference, differences
from router.control.state.merge import Conflict, reloaded
from router.control.state.revisions import Revision, Source
from router.control.state_file import StateFile, Stored
from router.gateway.settings import check_layers, check_models
from router.placement.settings import check as check_policy
from router.security.tenancy import problems_of as check_tenants
from router.tokenization.named_files import changed_files
from router.workers.settings import check as check_workers

CHECKS: tuple[Check, ...] = (check_workers, check_policy, check_models, check_layers, check_tenants)
"""Checks of live settings, apart from `file_problems`."""


@dataclass(frozen=True, slots=True)
class Initial:
    """The first state of a process, and the API's changes that newer settings replaced."""

    stored: Stored
    conflicts: tuple[Conflict, ...]


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the state comes from: the settings as loaded, a function that loads them again, the settings file, and the
    file of `state_dir` with what it held at the start.

    `read` raises `ConfigError`, and may be called in a thread.
    """

    loaded: Config
    read: Callable[[], Config]
    store: StateFile | None = None
    kept: Stored | None = None
    file: Path | None = None

    def initial(self) -> Initial:
        """Return the first state. If what was kept is not valid with these settings, it is that of the settings."""
        if self.kept is None or self.store is None:
            return initial(self.loaded, self.kept)
        try:
            found = initial(self.loaded, self.kept)
            settings = found.stored.state.settings
            problems = settings_problems(self.loaded, settings)
            problems += file_problems(self.loaded, live_settings(self.loaded), settings)
        except ValueError as error:  # msgspec's errors are ValueErrors too
            self.store.refuse(f"not valid with these settings: {error}")
            return initial(self.loaded)
        if problems:
            self.store.refuse("not valid with these settings: " + ", ".join(map(str, problems)))
            return initial(self.loaded)
        return found


def sources_of(config: Config, read: Callable[[], Config] | None = None, file: Path | None = None) -> Sources:
    """Return the sources of a start with `config`; read the file of `state_dir`.

    Raises:
        ConfigError: the file cannot be used, or a setting asks to watch a settings file and there is none.
    """
    if config.watch and file is None:
        raise ConfigError(
            [Problem("watch", "there is no settings file to watch", "write --config FILE, or leave it out")]
        )
    store = StateFile(config.state_dir) if config.state_dir is not None else None
    return Sources(config, read or (lambda: config), store, store.load() if store is not None else None, file)


def initial(config: Config, kept: Stored | None = None) -> Initial:
    """Merge the settings of a start with what was kept, or handed over by another process."""
    file = live_settings(config)
    if kept is None:
        first = DesiredState(version=1, lineage=secrets.token_hex(4), settings=file)
        return Initial(Stored(state=first, file=file, revisions=(revision_of(first, (), "started"),)), ())
    base, settings = based(kept.file, kept.state.discovered), kept.state.settings
    discovered = counting(kept.state.discovered, file, base, settings)
    merged = reloaded(settings, base, based(file, discovered))
    changed = settings_differences(settings, merged.settings)
    before = replace(kept.state, discovered=discovered)
    if not changed:
        return Initial(replace(kept, state=before, file=file), ())
    state = next_state(before, merged.settings)
    revision = revision_of(state, changed, "started with changed settings")
    stored = replace(kept, state=state, file=file, revisions=(*kept.revisions, revision))
    return Initial(stored, merged.conflicts)


def following(config: Config, state: DesiredState) -> Initial:
    """Return the start of a process whose supervisor decides the state, and keeps the history."""
    return Initial(Stored(state=state, file=live_settings(config), revisions=()), ())


def settings_problems(config: Config, settings: LiveSettings) -> list[Problem]:
    """Return the mistakes in live settings, placed by the names of the settings."""
    whole = with_live_settings(config, settings)
    return [Problem(dotted(path), problem, fix) for check in CHECKS for path, problem, fix in check(whole)]


def file_problems(config: Config, before: LiveSettings, after: LiveSettings) -> list[Problem]:
    """Return the files of models that are missing or broken, of those that `before` does not name. It reads them."""
    found = changed_files(with_live_settings(config, before), with_live_settings(config, after))
    return [Problem(dotted(path), problem, fix) for path, problem, fix in found]


async def check(config: Config, before: LiveSettings, wanted: LiveSettings) -> None:
    """Raise `ConfigError` if the settings are not valid. Files of models are read in a thread."""
    problems = settings_problems(config, wanted)
    if not problems and wanted.models != before.models:
        problems = await asyncio.to_thread(file_problems, config, before, wanted)
    if problems:
        raise ConfigError(problems)


def settings_differences(before: LiveSettings, after: LiveSettings) -> tuple[SettingDifference, ...]:
    """Return how two live settings differ."""
    return differences(tree_of(before), tree_of(after))


def next_state(state: DesiredState, settings: LiveSettings) -> DesiredState:
    return replace(state, version=state.version + 1, settings=settings)


def revision_of(
    state: DesiredState,
    changed: tuple[SettingDifference, ...],
    what: str,
    source: Source = "start",
    who: str | None = None,
) -> Revision:
    """Return the revision that made `state`, with the present time."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    return Revision(number=state.version, at=at, source=source, who=who, what=what, differences=changed)
