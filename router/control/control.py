"""Change the desired state: one change after another, each as a whole or not at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from msgspec import UNSET, ValidationError
from msgspec.structs import replace as replace_struct

from router.config.problems import ConfigError
from router.control.background_reloads import BackgroundReloads
from router.control.change import (
    RELOADED,
    Change,
    ChangeOutcome,
    HandedOverError,
    NotAppliedError,
    Reloaded,
    StaleTagError,
)
from router.control.discovered import DiscoveredWorkers, based, counting, lasting, rediscovered
from router.control.sharing import (
    NONE_SHARED,
    ApartError,
    OvertakenError,
    SharedChanges,
    Sharing,
    lost_changes,
    next_shared,
    over,
)
from router.control.start import (
    Initial,
    Sources,
    file_problems,
    initial,
    next_state,
    revision_of,
    settings_differences,
    settings_problems,
)
from router.control.state.desired_state import DesiredState, FoundWorker, LiveSettings, live_settings
from router.control.state.differences import SettingDifference
from router.control.state.edits import drain_only
from router.control.state.effective import with_effective
from router.control.state.merge import api_changes, reloaded
from router.control.state.pending import pending
from router.control.state.revisions import Revision, RevisionHistory
from router.control.state_file import NotSavedError, Stored
from router.metrics.instruments import Reading

log = logging.getLogger("warmroute.control")
T = TypeVar("T")

SETTINGS, API = "settings", "api"
"""Sources of workers beside those that are discovered: the settings of the start, and the admin API."""
REVISIONS_KEPT = 100
Apply = Callable[[DesiredState], Awaitable[None]]
"""Bring the process, or all processes, to a state. Raise `NotAppliedError` and change nothing if that cannot be."""
_APART = " (while Redis did not answer)"
_LOGGED = 20
"""Differences of one change that are logged."""
_OVERTAKEN = 3
"""How often a change is made again over another gateway's."""


class Control:
    """The desired state of one gateway, in all of its processes.

    `lock` is held during a change: no process may start meanwhile.
    """

    def __init__(self, sources: Sources, start: Initial, apply: Apply) -> None:
        self.lock = asyncio.Lock()
        self.config = sources.loaded
        """The settings that the gateway runs with."""
        self._apply = apply
        self._sources = sources
        self._store = sources.store
        self._reloads = BackgroundReloads(self.reload, self.config.processes)
        self._handed_over = False
        self._opened = False
        self.unsaved: str | None = None
        """Why the last state could not be written; None if it was."""
        self.sharing: Sharing | None = None
        """Where the gateways of a fleet share the admin API's changes."""
        self._found: DiscoveredWorkers | None = None
        """The last answer of the sources of workers; None before the first."""
        self._adopt(start)

    def _adopt(self, start: Initial) -> None:
        self.state = start.stored.state
        self.file = start.stored.file
        self.history = RevisionHistory(REVISIONS_KEPT, start.stored.revisions)
        self.shared = start.stored.shared or NONE_SHARED
        for conflict in start.conflicts:
            log.warning("a change of the admin API was replaced", extra={"reason": str(conflict)})

    @property
    def base(self) -> LiveSettings:
        """The settings that the API's changes are differences from."""
        return based(self.file, self.state.discovered)

    def origin_of(self, worker_id: str) -> tuple[str, tuple[str, ...]]:
        """Return the source that a worker's settings are from, and further sources that name it.

        Beside the names of sources, these are `SETTINGS` and `API`.
        """
        counts = self.state.discovered.get(worker_id)
        if counts is not None:
            return counts.source, counts.also
        found = self._discovered_now.get(worker_id)
        sources = (found.source, *found.also) if found is not None else ()
        return SETTINGS if worker_id in self.file.workers else API, sources

    @property
    def keeps(self) -> bool:
        """Whether changes outlive the process."""
        return self._store is not None

    def readings(self) -> Iterator[Reading]:
        """Yield whether the state could not be written, and the files set aside."""
        yield "warmroute_state_problems", ("unsaved",), float(self.unsaved is not None)
        yield "warmroute_state_problems", ("set_aside",), self.set_aside

    @property
    def set_aside(self) -> int:
        """The state files that were set aside, because they could not be used in whole."""
        return 0 if self._store is None else self._store.set_aside

    @property
    def stored(self) -> Stored:
        """Everything that another process needs to continue from here."""
        return self._stored(self.state, self.file, self.history, self.shared)

    def _stored(
        self, state: DesiredState, file: LiveSettings, history: RevisionHistory, shared: SharedChanges
    ) -> Stored:
        return Stored(state=state, file=file, revisions=history.revisions, shared=shared if shared.number else UNSET)

    async def opened(self) -> None:
        """Write the first state, once this process serves, and watch the settings file if a setting asks for it.

        If writing fails, changes will fail with the same reason.
        """
        if self.config.watch and self._sources.file is not None:
            self._reloads.watch(self._sources.file)
        async with self.lock:
            try:
                await self._save(self.stored)
            except NotSavedError as error:
                log.error("the desired state could not be saved", extra={"reason": str(error)})
            self._opened = True

    async def take_over(self, handed: Stored) -> None:
        """Continue from the state of the gateway that this one takes over from, which writes no more.

        Raises:
            ConfigError: that state is not valid here.
            NotAppliedError: the process cannot be brought to that state.
        """
        async with self.lock:
            await self._continue_from(handed)
            if self._store is not None:
                self._store.owned()

    async def yield_state(self) -> Stored:
        """Make no more changes, and return the last state."""
        async with self.lock:
            self._handed_over = True
            return self.stored

    async def resume(self, drained: Collection[str]) -> None:
        """Continue after a successor has died: from what it kept in `state_dir`, with the workers drained that it last
        named.
        """
        async with self.lock:
            self._handed_over = False
            try:
                kept = await asyncio.to_thread(self._store.load) if self._store is not None else None
                if kept is not None and kept.state.lineage == self.state.lineage:
                    await self._continue_from(kept)
            except (ConfigError, NotAppliedError) as error:
                log.error("the changes of the other process are lost", extra={"reason": str(error)})
            await self._rediscover_or_log()
        leaving = {name for name, one in self.state.discovered.items() if one.leaving}
        drained = [name for name in drained if name not in leaving]
        await self.make(Change(drain_only(drained), "drained the same workers as the process that died", "start"))

    async def _continue_from(self, stored: Stored) -> None:
        start = initial(self.config, stored)
        await self._check(start.stored.state.settings)
        await self._bring(start.stored.state)
        self._adopt(start)

    async def discover(self, found: Mapping[str, FoundWorker]) -> None:
        """Take on the workers that sources name, as one change. It makes no revision.

        Raises:
            NotAppliedError: a process refused them; the next call tries again.
        """
        async with self.lock:
            self._found = dict(found)
            if not self._handed_over:
                await self._rediscover()

    @property
    def _discovered_now(self) -> DiscoveredWorkers:
        return self._found if self._found is not None else self.state.discovered

    async def _rediscover(self) -> None:
        discovered = counting(self._discovered_now, self.file, self.base, self.state.settings)
        if discovered == self.state.discovered:
            return
        before, state = self.stored, rediscovered(self.state, self.file, discovered)
        state = replace_struct(state, settings=over(state.settings, self._shared_of(discovered)))
        await self._bring(state)
        self.state = state
        fields = {"workers": len(discovered), "leaving": sum(one.leaving for one in discovered.values())}
        log.info("discovered workers changed", extra=fields)
        if self._store is not None and lasting(before) != lasting(self.stored):
            try:
                await self._save(self.stored)
            except NotSavedError as error:
                log.error("the desired state could not be saved", extra={"reason": str(error)})

    def _shared_of(self, discovered: DiscoveredWorkers) -> list[SettingDifference]:
        """Return the changes that another gateway shared of workers that this one did not know until now."""
        new = discovered.keys() - self.state.discovered.keys() - self.state.settings.workers.keys()
        return [one for one in self.shared.changes if one.path[0] == "workers" and one.path[1] in new]

    async def _rediscover_or_log(self) -> None:
        try:
            await self._rediscover()
        except Exception as error:  # the next call of `discover` tries again
            log.error("discovered workers not applied", extra={"reason": str(error)})

    async def follow(self, state: DesiredState) -> None:
        """Take on a state that another process decided.

        Raises:
            NotAppliedError: this process cannot be brought to it.
        """
        async with self.lock:
            await self._apply(state)
            self.state = state

    async def follow_shared(self, shared: SharedChanges) -> bool:
        """Take on the changes that another gateway has shared, over this one's own file. Return False if it is too
        early, or another process serves.

        Raises:
            msgspec.ValidationError, ConfigError: the settings would not be valid here.
            NotAppliedError: a process refused them.
            NotSavedError: they cannot be written.
        """
        async with self.lock:
            if self._handed_over or not self._opened:
                return False
            added = {
                change.path[1] for change in shared.changes if change.path[0] == "workers" and len(change.path) == 2
            }
            discovered = {name: one for name, one in self.state.discovered.items() if name not in added}
            wanted = over(based(self.file, discovered), shared.changes)
            what = f"{shared.what} (on {shared.gateway})" + self._lost_to(shared)
            changed = settings_differences(self.state.settings, wanted)
            if changed:
                await self._check(wanted)
            change = Change(lambda _: wanted, what, "fleet", shared.who)
            await self._change(change, wanted, changed, self.file, discovered, shared)
            return True

    def _lost_to(self, shared: SharedChanges) -> str:
        """Return the changes that were made here alone and are lost to `shared`, as a part of a revision's summary."""
        if self.shared.number and self.shared.change in (shared.change, *shared.lineage):
            return ""
        lost = lost_changes(api_changes(self.base, self.state.settings), shared.changes)
        if not lost:
            return ""
        log.warning("changes that were made here alone are lost", extra={"lost": lost, "to": shared.gateway})
        return f"; replaced changes that were made here alone: {lost}"

    async def share_kept(self) -> None:
        """Share the changes that this gateway kept from a time without a fleet."""
        async with self.lock:
            if self.shared.number or self._handed_over or not api_changes(self.base, self.state.settings):
                return
            what = "kept changes"
            settings = self.state.settings
            self.shared = await self._propose(Change(lambda _: settings, what), settings, self.base)

    async def make(self, change: Change) -> ChangeOutcome:
        """Make a change. It is finished even if the caller is cancelled.

        If another gateway of the fleet was first, it is made again over that gateway's change, unless `if_match` says
        that the caller has seen the state.

        Raises:
            OvertakenError: another gateway was first.
            HandedOverError: another process serves.
            StaleTagError: `if_match` names another state.
            ConfigError: the settings would not be valid.
            NotAppliedError: a process refused the state.
            NotSavedError: the state cannot be written.
        """
        return await asyncio.shield(asyncio.ensure_future(self._over_others(self._make, change)))

    async def reload(self, change: Change | None = None) -> Reloaded:
        """Read the settings again and apply what has changed, as a whole. `change` says for whom; its edit is not used.

        Raises:
            ConfigError: the settings are not valid; it names every mistake with its place. Nothing has changed.
            OvertakenError, HandedOverError, StaleTagError, NotAppliedError, NotSavedError: as `make`.
        """
        change = change or Change(_same, RELOADED, "reload")
        return await asyncio.shield(asyncio.ensure_future(self._over_others(self._reload, change)))

    def reload_soon(self, why: str) -> None:
        """Start a reload, and log how it ends."""
        self._reloads.soon(why)

    def close(self) -> None:
        self._reloads.close()

    async def _over_others(self, once: Callable[[Change], Awaitable[T]], change: Change) -> T:
        for left in reversed(range(_OVERTAKEN + 1)):
            try:
                return await once(change)
            except OvertakenError as error:
                if not left or change.if_match not in (None, "*") or not await self._caught_up(error.newer):
                    raise
        raise AssertionError("the last try returns or raises")

    async def _caught_up(self, newer: SharedChanges) -> bool:
        """Take on another gateway's change, if that has not happened yet. Return False if it is not valid here."""
        try:
            return self.shared.number >= newer.number or await self.follow_shared(newer)
        except (ConfigError, NotAppliedError, NotSavedError, ValidationError):
            return False

    async def _reload(self, change: Change) -> Reloaded:
        async with self.lock:
            config = await asyncio.to_thread(self._sources.read)
            after = live_settings(config)
            discovered = counting(self._discovered_now, after, self.base, self.state.settings)
            merged = reloaded(self.state.settings, self.base, based(after, discovered))
            outcome = await self._locked(replace(change, edit=lambda _: merged.settings), after, discovered)
            return Reloaded(outcome, merged.conflicts, pending(self.config, config))

    async def _make(self, change: Change) -> ChangeOutcome:
        async with self.lock:
            outcome = await self._locked(change, self.file, self.state.discovered)
            if not change.dry_run:
                await self._rediscover_or_log()  # a worker that the API has let go may have another source
            return outcome

    async def _locked(self, change: Change, file: LiveSettings, discovered: DiscoveredWorkers) -> ChangeOutcome:
        if self._handed_over:
            raise HandedOverError
        self._check_tag(change)
        wanted = change.edit(self.state.settings)
        changed = settings_differences(self.state.settings, wanted)
        if changed:
            await self._check(wanted)
        effective = with_effective(changed, self.state.settings, wanted)
        if not change.dry_run:
            await self._change(change, wanted, changed, file, discovered)
        shared = None if self.sharing is None else self.shared.apart is not True
        return ChangeOutcome(self.state, changed, self.keeps, shared, effective)

    def _check_tag(self, change: Change) -> None:
        if change.if_match is None:
            return
        if self.state.tag not in (tags := [tag.strip() for tag in change.if_match.split(",")]) and "*" not in tags:
            raise StaleTagError(change.if_match, self.state.tag)

    async def _check(self, wanted: LiveSettings) -> None:
        """Raise `ConfigError` if the settings are not valid. Files of models are read in a thread."""
        problems = settings_problems(self.config, wanted)
        if not problems and wanted.models != self.state.settings.models:
            problems = await asyncio.to_thread(file_problems, self.config, self.state.settings, wanted)
        if problems:
            raise ConfigError(problems)

    async def _change(
        self,
        change: Change,
        wanted: LiveSettings,
        changed: tuple[SettingDifference, ...],
        file: LiveSettings,
        discovered: DiscoveredWorkers,
        shared: SharedChanges | None = None,
    ) -> None:
        """Apply, share, save, and only then record the change. If that fails, the processes return to the old state.

        A change to what is there already is applied too, since a process may have become something else. `shared` is
        the document that the change follows; None if it is this gateway's own change.
        """
        state, history = self.state, self.history
        if changed:
            state = next_state(self.state, wanted)
        if discovered != state.discovered:
            state = replace_struct(state, discovered=dict(discovered), discovery=state.discovery + 1)
        await self._bring(state)
        try:
            shared = shared or await self._propose(change, wanted, based(file, discovered))
            if state is self.state and file == self.file and shared == self.shared:
                return
            if changed:
                history = RevisionHistory(REVISIONS_KEPT, history.revisions)
                what = change.what + (_APART if shared.apart is True else "")
                history.add(revision_of(state, changed, what, change.source, change.who))
            await self._save(self._stored(state, file, history, shared))
        except (NotSavedError, OvertakenError):
            await self._bring(self.state)
            raise
        self.state, self.file, self.history, self.shared = state, file, history, shared
        if changed:
            _log(history.revisions[-1], keeps=self.keeps)

    async def _propose(self, change: Change, wanted: LiveSettings, base: LiveSettings) -> SharedChanges:
        """Share what the change makes of the API's changes over `base`. Return the document as it is then.

        Raises:
            OvertakenError: another gateway was first.
        """
        changes = api_changes(base, wanted)
        if self.sharing is None or changes == self.shared.changes:
            return self.shared
        after = next_shared(self.shared, changes, self.sharing.gateway, change.what, change.who)
        try:
            newer = await self.sharing.propose(after, self.shared)
        except ApartError:
            return replace_struct(after, apart=True)
        if newer is not None:
            raise OvertakenError(newer)
        return after

    async def _bring(self, state: DesiredState) -> None:
        try:
            await self._apply(state)
        except NotAppliedError as error:
            log.error("desired state not applied", extra={"reason": str(error)}, exc_info=error.__cause__)
            raise

    async def _save(self, stored: Stored) -> None:
        if self._store is None:
            return
        try:
            await asyncio.to_thread(self._store.save, lasting(stored))
        except NotSavedError as error:
            self.unsaved = str(error)
            raise
        self.unsaved = None


def _same(settings: LiveSettings) -> LiveSettings:
    return settings


def _log(revision: Revision, *, keeps: bool) -> None:
    shown = [str(one) for one in revision.differences[:_LOGGED]]
    more = len(revision.differences) - len(shown)
    fields = {
        "version": revision.number,
        "source": revision.source,
        "who": revision.who,
        "what": revision.what,
        "differences": "; ".join([*shown, *([f"and {more} more"] if more else [])]),
    }
    if not keeps and revision.source in ("api", "restore"):
        fields["kept"] = "until the process ends: state_dir is not set"
    log.info("desired state changed", extra=fields)
