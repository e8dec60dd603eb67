"""Bring all child processes to one desired state: each gets the whole state with its version, never an operation.

A request lives in one process, and a process changes in one iteration of its event loop. So no request sees a part of a
change. The first process that answers decides whether the state can be applied. A process that does not answer, or
refuses what the first one accepted, is killed, and its replacement starts with the state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from router.admin.http.problems import no_process
from router.admin.replies import Reply
from router.config.model import ModelConfig
from router.control.change import NotAppliedError
from router.control.state.desired_state import DesiredState
from router.process.children.child_client import CHANGE_S, NoReplyError
from router.process.children.child_process import ChildProcess
from router.process.children.private_api import prepare_request, state_request

PREPARE_S = 120.0
"""Time limit of the preparation for a change. A process that takes longer keeps the old state, as all others do."""

log = logging.getLogger("warmroute.process")


class Changes:
    """Send states to the children. The caller holds the lock without which no process may start."""

    def __init__(self, children: Sequence[ChildProcess]) -> None:
        self._children = children
        self._models: dict[str, ModelConfig] = {}
        """The settings of models in the last state that all processes could prepare for."""

    async def apply(self, state: DesiredState) -> None:
        """Bring every process to `state`.

        Raises:
            NotAppliedError: the first process refused it, or one could not prepare; no process changed.
            AdminError: no process serves.
        """
        await asyncio.gather(*(child.settled.wait() for child in self._children))
        if state.settings.models != self._models:
            await self._prepare(state)
        waiting = list(self._children)
        first = await self._ask_first(state, waiting)
        if not first.is_success:
            raise NotAppliedError(first.detail)
        await asyncio.gather(*(self._bring(child, state) for child in waiting))

    async def _prepare(self, state: DesiredState) -> None:
        """Let every process read the tokenizers of `state`, which may take seconds each. Then the change is quick."""
        clients = [child.client for child in self._children if child.client is not None]
        try:
            answers = await asyncio.gather(*(client.ask(prepare_request(state), PREPARE_S) for client in clients))
        except NoReplyError as error:
            raise NotAppliedError(str(error)) from None
        for answer in answers:
            if not answer.is_success:
                raise NotAppliedError(answer.detail)
        self._models = state.settings.models

    def behind(self, state: DesiredState) -> list[ChildProcess]:
        """Return the children whose last reply was from another version than that of `state`."""
        return [
            child
            for child in self._children
            if child.client is not None and child.client.state_version not in (None, state.mark)
        ]

    async def correct(self, state: DesiredState) -> None:
        """Bring every process that is `behind` to `state`."""
        await asyncio.gather(*(self._bring(child, state) for child in self.behind(state)))

    async def _ask_first(self, state: DesiredState, waiting: list[ChildProcess]) -> Reply:
        """Return the reply of the first child that answers. Remove all children that were asked from `waiting`."""
        while waiting:
            if (answer := await self._ask(waiting.pop(0), state)) is not None:
                return answer
        raise no_process()

    async def _bring(self, child: ChildProcess, state: DesiredState) -> None:
        answer = await self._ask(child, state)
        if answer is not None and not answer.is_success:
            fields = {"process_index": child.number, "version": state.version, "reason": answer.detail}
            log.error("process ended: it refused the desired state", extra=fields)
            child.kill()

    async def _ask(self, child: ChildProcess, state: DesiredState) -> Reply | None:
        client = child.client
        if client is None:
            return None
        try:
            return await client.ask(state_request(state), CHANGE_S)
        except NoReplyError as error:
            log.error("process ended: it did not answer a change", extra={"reason": str(error)})
            child.kill()
            return None
