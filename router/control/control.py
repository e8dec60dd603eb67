"""Change the desired state: one change after another, each as a whole or not at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

from router.config.model import Config
from router.config.problems import ConfigError
from router.control.desired_state import DesiredState, LiveSettings
from router.control.differences import SettingDifference
from router.control.edits import drain_only
from router.control.reconciler import NotAppliedError
from router.control.revisions import Revision, RevisionHistory, Source
from router.control.start import Initial, initial, next_state, revision_of, settings_differences, settings_problems
from router.control.state_file import NotSavedError, StateFile, Stored

log = logging.getLogger("warmroute.control")

Apply = Callable[[DesiredState], Awaitable[None]]
"""Bring the process, or all processes, to a state. Raise `NotAppliedError` and change nothing if that cannot be."""
_LOGGED = 20
"""Differences of one change that are logged."""


class StaleTagError(Exception):
    """The state is no longer the one that the caller named."""

    def __init__(self, given: str, now: str) -> None:
        super().__init__(f"the desired state is {now}, and If-Match names {given[:80]}")


class HandedOverError(Exception):
    """Another process serves, and decides the state."""


class TagRequiredError(Exception):
    """Changes must name the state that they are based on."""


@dataclass(frozen=True, slots=True)
class Change:
    """One wanted change. `edit` returns the settings as they should become; it may raise, and then nothing changes.

    `what` is its summary in words. `if_match` is the entity tag of the state that the caller knows, or ``*``.
    """

    edit: Callable[[LiveSettings], LiveSettings]
    what: str
    source: Source = "api"
    who: str | None = None
    if_match: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class ChangeOutcome:
    """The state after a change, and how it differs from the one before. After a dry run the state is unchanged.

    `kept`: the change outlives the process.
    """

    state: DesiredState
    differences: tuple[SettingDifference, ...]
    kept: bool


class Control:
    """The desired state of one gateway, in all of its processes.

    `lock` is held during a change: no process may start meanwhile.
    """

    def __init__(self, config: Config, start: Initial, apply: Apply, store: StateFile | None = None) -> None:
        self.lock = asyncio.Lock()
        self.config = config
        """The settings that the gateway runs with."""
        self._apply = apply
        self._store = store
        self._handed_over = False
        self._adopt(start)

    def _adopt(self, start: Initial) -> None:
        self.state = start.stored.state
        self.file = start.stored.file
        self.history = RevisionHistory(self.config.revisions_kept, start.stored.revisions)
        for conflict in start.conflicts:
            log.warning("a change of the admin API was replaced", extra={"reason": str(conflict)})

    @property
    def keeps(self) -> bool:
        """Whether changes outlive the process."""
        return self._store is not None

    @property
    def stored(self) -> Stored:
        """Everything that another process needs to continue from here."""
        return Stored(state=self.state, file=self.file, revisions=self.history.revisions)

    async def opened(self) -> None:
        """Write the first state, once this process serves. If that fails, changes will fail with the same reason."""
        async with self.lock:
            try:
                await self._save(self.stored)
            except NotSavedError as error:
                log.error("the desired state could not be saved", extra={"reason": str(error)})

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

    async def hand_over(self) -> Stored:
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
        await self.make(Change(drain_only(drained), "drained the same workers as the process that died", "start"))

    async def _continue_from(self, stored: Stored) -> None:
        start = initial(self.config, stored)
        self._check(start.stored.state.settings)
        await self._bring(start.stored.state)
        self._adopt(start)

    async def follow(self, state: DesiredState) -> None:
        """Take on a state that another process decided.

        Raises:
            NotAppliedError: this process cannot be brought to it.
        """
        async with self.lock:
            await self._apply(state)
            self.state = state

    async def make(self, change: Change) -> ChangeOutcome:
        """Make a change. It is finished even if the caller is cancelled.

        Raises:
            HandedOverError: another process serves.
            StaleTagError: `if_match` names another state.
            TagRequiredError: `if_match` is missing, and a setting requires it.
            ConfigError: the settings would not be valid.
            NotAppliedError: a process refused the state.
            NotSavedError: the state cannot be written.
        """
        return await asyncio.shield(asyncio.ensure_future(self._make(change)))

    async def _make(self, change: Change, file: LiveSettings | None = None) -> ChangeOutcome:
        async with self.lock:
            if self._handed_over:
                raise HandedOverError
            self._check_tag(change)
            wanted = change.edit(self.state.settings)
            changed = settings_differences(self.state.settings, wanted)
            if changed:
                self._check(wanted)
            if not change.dry_run:
                await self._change(change, wanted, changed, file or self.file)
            return ChangeOutcome(self.state, changed, self.keeps)

    def _check_tag(self, change: Change) -> None:
        if change.if_match is None:
            if self.config.admin_require_if_match and change.source in ("api", "restore"):
                raise TagRequiredError
        elif self.state.tag not in (tags := [tag.strip() for tag in change.if_match.split(",")]) and "*" not in tags:
            raise StaleTagError(change.if_match, self.state.tag)

    def _check(self, wanted: LiveSettings) -> None:
        if problems := settings_problems(self.config, wanted):
            raise ConfigError(problems)

    async def _change(
        self, change: Change, wanted: LiveSettings, changed: tuple[SettingDifference, ...], file: LiveSettings
    ) -> None:
        """Apply, save, and only then record the change. If saving fails, the processes return to the old state.

        A change to what is there already is applied too, since a process may have become something else.
        """
        state, history = self.state, self.history
        if changed:
            state = next_state(self.state, wanted)
            history = RevisionHistory(self.config.revisions_kept, history.revisions)
            history.add(revision_of(state, changed, change.what, change.source, change.who))
        await self._bring(state)
        if state is self.state and file == self.file:
            return
        try:
            await self._save(Stored(state=state, file=file, revisions=history.revisions))
        except NotSavedError:
            await self._bring(self.state)
            raise
        self.state, self.file, self.history = state, file, history
        if changed:
            self._log(history.revisions[-1])

    async def _bring(self, state: DesiredState) -> None:
        try:
            await self._apply(state)
        except NotAppliedError as error:
            log.error("desired state not applied", extra={"reason": str(error)}, exc_info=error.__cause__)
            raise

    async def _save(self, stored: Stored) -> None:
        if self._store is not None:
            await asyncio.to_thread(self._store.save, stored)

    def _log(self, revision: Revision) -> None:
        shown = [str(one) for one in revision.differences[:_LOGGED]]
        more = len(revision.differences) - len(shown)
        fields: dict[str, Any] = {
            "version": revision.number,
            "source": revision.source,
            "who": revision.who,
            "what": revision.what,
            "differences": "; ".join([*shown, *([f"and {more} more"] if more else [])]),
        }
        if not self.keeps and revision.source in ("api", "restore"):
            fields["kept"] = "until the process ends: state_dir is not set"
        log.info("desired state changed", extra=fields)
