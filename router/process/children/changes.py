"""Operators' changes: every process makes a change, or none does.

A request lives in one process, and a process makes a change in one iteration of its event loop. So no request sees a
part of a change. The first process that answers decides whether the change is valid. A process that does not answer is
killed, and its replacement starts with the change. If a later process refuses, the change is undone in all processes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from router.admin.problems import AdminError
from router.process.children.child_client import CHANGE_S, ChildClient, ChildReply, ChildRequest, NoReplyError

log = logging.getLogger("warmroute.process")


@dataclass(frozen=True, slots=True)
class Change:
    """A request to each process, its inverse, and `note`, which records the change for processes that start later."""

    request: ChildRequest
    inverse: ChildRequest | None
    note: Callable[[], None]


class Child(Protocol):
    """The part of `router.process.children.child_process.ChildProcess` that changes need."""

    @property
    def number(self) -> int: ...
    @property
    def client(self) -> ChildClient | None: ...
    @property
    def settled(self) -> asyncio.Event: ...
    def kill(self) -> None: ...


class Changes:
    """Make changes one after another. No process may start while `lock` is held."""

    def __init__(self, children: Sequence[Child]) -> None:
        self.lock = asyncio.Lock()
        self._children = children

    async def make(self, prepare: Callable[[], Change]) -> dict[int, ChildReply]:
        """Make a change. Return the replies by process, or only the refusal.

        Raises:
            AdminError: no process serves, or the change was undone.
        """
        async with self.lock:
            await asyncio.gather(*(child.settled.wait() for child in self._children))
            change = prepare()
            children = list(self._children)
            answers = await self._ask_first(change, children)
            if not _accepted(answers.values()):
                return answers
            answers |= await self._ask(children, change.request)
            refusals = {number: answer for number, answer in answers.items() if not answer.is_success}
            if refusals:
                raise await self._undo(change, answers, refusals)
            change.note()
            return answers

    async def _ask_first(self, change: Change, children: list[Child]) -> dict[int, ChildReply]:
        """Return the reply of the first child that answers, and remove all children that were asked from `children`."""
        while children:
            if answers := await self._ask([children.pop(0)], change.request):
                return answers
        raise no_process()

    async def _ask(self, children: Sequence[Child], request: ChildRequest) -> dict[int, ChildReply]:
        answers = await asyncio.gather(*(self._ask_one(child, request) for child in children))
        return {child.number: answer for child, answer in zip(children, answers, strict=True) if answer is not None}

    async def _ask_one(self, child: Child, request: ChildRequest) -> ChildReply | None:
        client = child.client
        if client is None:
            return None
        try:
            return await client.ask(request, CHANGE_S)
        except NoReplyError as error:
            log.error("process ended: it did not answer a change", extra={"reason": str(error)})
            child.kill()
            return None

    async def _undo(
        self, change: Change, answers: dict[int, ChildReply], refusals: dict[int, ChildReply]
    ) -> AdminError:
        """Undo the change in each process that made it. Kill a process in which that fails; its replacement starts
        without the change.
        """
        made = [child for child in self._children if child.number in answers.keys() - refusals.keys()]
        undone = await self._ask(made, change.inverse) if change.inverse is not None else {}
        for child in made:
            answer = undone.get(child.number)  # a child that did not answer was killed already
            if change.inverse is None or (answer is not None and not answer.is_success):
                child.kill()
        number, refusal = next(iter(refusals.items()))
        return AdminError(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            "change_undone",
            f"process {number} refused what process {made[0].number} accepted: {refusal.detail}; "
            "the change was undone in all processes",
        )


def no_process() -> AdminError:
    """Return the 503 for no serving process."""
    detail = "no process of the gateway serves now; one is starting, or the log gives the reason why it cannot"
    return AdminError(HTTPStatus.SERVICE_UNAVAILABLE, "no_process", detail, headers={"retry-after": "1"})


def _accepted(answers: Iterable[ChildReply]) -> bool:
    return all(answer.is_success for answer in answers)
