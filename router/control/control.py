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
    log_revision,
)
from router.control.discovered import DiscoveredWorkers, based, counting, lasting, rediscovered
from router.control.saving import Saving
from router.control.sharing import (
    NONE_SHARED,
    ApartError,
    OvertakenError,
    SharedChanges,
    Sharing,
    lost_to,
    next_shared,
    over,
)
from router.control.start import Initial, Sources, check, initial, next_state, revision_of, settings_differences
from router.control.state.desired_state import DesiredState, FoundWorker, LiveSettings, live_settings
from router.control.state.differences import SettingDifference
from router.control.state.edits import set_maintenance_of
from router.control.state.effective import with_effective
from router.control.state.merge import api_changes, reloaded
from router.control.state.pending import pending
from router.control.state.revisions import RevisionHistory, kept
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
        self.saving = Saving(sources.store)
        self.reloads = BackgroundReloads(self.reload, self.config.processes)
        self._handed_over = False
        self._opened = False
        self.sharing: Sharing | None = None
        """Where the gateways of a fleet share the admin API's changes."""
        self._found: DiscoveredWorkers | None = None
        """The last answer of the sources of workers; None before the first."""
        self.stored = _adopted(start)
        """Everything that another process needs to continue from here."""

    @property
    def state(self) -> DesiredState:
        return self.stored.state

    @property
    def file(self) -> LiveSettings:
        """The settings of the start, or of the last reload."""
        return self.stored.file

    @property
    def history(self) -> RevisionHistory:
        return RevisionHistory(self.stored.revisions)

    @property
    def shared(self) -> SharedChanges:
        """The document that the gateways of a fleet share, as last seen."""
        return self.stored.shared or NONE_SHARED

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

    def readings(self) -> Iterator[Reading]:
        return self.saving.readings()

    def joined(self, shared: SharedChanges) -> None:
        """Take on a document that the fleet shares, and that makes no change here."""
        self.stored = replace_struct(self.stored, shared=shared)

    async def opened(self) -> None:
        """Write the first state, once this process serves, and watch the settings file if a setting asks for it.

        If writing fails, changes will fail with the same reason.
        """
        if self.config.watch and self._sources.file is not None:
            self.reloads.watch(self._sources.file)
        async with self.lock:
            await self.saving.save_or_log(self.stored)
            self._opened = True

    async def take_over(self, handed: Stored) -> None:
        """Continue from the state of the gateway that this one takes over from, which writes no more.

        Raises:
            ConfigError: that state is not valid here.
            NotAppliedError: the process cannot be brought to that state.
        """
        async with self.lock:
            await self._continue_from(handed)
            self.saving.owned()

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
                found = await self.saving.load()
                if found is not None and found.state.lineage == self.state.lineage:
                    await self._continue_from(found)
            except (ConfigError, NotAppliedError) as error:
                log.error("the changes of the other process are lost", extra={"reason": str(error)})
            await self._rediscover_or_log()
        leaving = {name for name, one in self.state.discovered.items() if one.leaving}
        drained = [name for name in drained if name not in leaving]
        same = set_maintenance_of(drained, True, others=False)
        await self.make(Change(same, "drained the same workers as the process that died", "start"))

    async def _continue_from(self, stored: Stored) -> None:
        start = initial(self.config, stored)
        await check(self.config, self.state.settings, start.stored.state.settings)
        await self._bring(start.stored.state)
        self.stored = _adopted(start)

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
        new = discovered.keys() - self.state.discovered.keys() - self.state.settings.workers.keys()
        # changes that another gateway shared of workers that this one did not know until now
        shared = [one for one in self.shared.changes if one.path[0] == "workers" and one.path[1] in new]
        state = replace_struct(state, settings=over(state.settings, shared))
        await self._bring(state)
        self.stored = replace_struct(before, state=state)
        fields = {"workers": len(discovered), "leaving": sum(one.leaving for one in discovered.values())}
        log.info("discovered workers changed", extra=fields)
        if lasting(before) != lasting(self.stored):
            await self.saving.save_or_log(self.stored)

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
            self.stored = replace_struct(self.stored, state=state)

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
            new = {change.path[1] for change in shared.changes if change.path[0] == "workers" and len(change.path) == 2}
            discovered = {name: one for name, one in self.state.discovered.items() if name not in new}
            wanted = over(based(self.file, discovered), shared.changes)
            changed = settings_differences(self.state.settings, wanted)
            if changed:
                await check(self.config, self.state.settings, wanted)
            what = f"{shared.what} (on {shared.gateway})"
            if lost := lost_to(shared, self.shared, api_changes(self.base, self.state.settings)):
                log.warning("changes that were made here alone are lost", extra={"lost": lost, "to": shared.gateway})
                what += f"; replaced changes that were made here alone: {lost}"
            change = Change(lambda _: wanted, what, "fleet", shared.who)
            await self._change(change, wanted, changed, self.file, discovered, shared)
            return True

    async def share_kept(self) -> None:
        """Share the changes that this gateway kept from a time without a fleet."""
        async with self.lock:
            if self.shared.number or self._handed_over or not api_changes(self.base, self.state.settings):
                return
            what = "kept changes"
            settings = self.state.settings
            self.joined(await self._propose(Change(lambda _: settings, what), settings, self.base))

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
        change = change or Change(lambda settings: settings, RELOADED, "reload")
        return await asyncio.shield(asyncio.ensure_future(self._over_others(self._reload, change)))

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
        change.check_tag(self.state)
        wanted = change.edit(self.state.settings)
        changed = settings_differences(self.state.settings, wanted)
        if changed:
            await check(self.config, self.state.settings, wanted)
        effective = with_effective(changed, self.state.settings, wanted)
        if not change.dry_run:
            await self._change(change, wanted, changed, file, discovered)
        shared = None if self.sharing is None else self.shared.apart is not True
        return ChangeOutcome(self.state, changed, self.saving.keeps, shared, effective)

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
        state, revisions = self.state, self.stored.revisions
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
                what = change.what + (_APART if shared.apart is True else "")
                revision = revision_of(state, changed, what, change.source, change.who)
                revisions = kept((*revisions, revision), REVISIONS_KEPT)
            after = Stored(state=state, file=file, revisions=revisions, shared=shared if shared.number else UNSET)
            await self.saving.save(after)
        except (NotSavedError, OvertakenError):
            await self._bring(self.state)
            raise
        self.stored = after
        if changed:
            log_revision(revisions[-1], kept=self.saving.keeps)

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


def _adopted(start: Initial) -> Stored:
    for conflict in start.conflicts:
        log.warning("a change of the admin API was replaced", extra={"reason": str(conflict)})
    return replace_struct(start.stored, revisions=kept(start.stored.revisions, REVISIONS_KEPT))
