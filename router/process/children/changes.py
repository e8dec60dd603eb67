"""Changes by the operator: every process makes one, or none does.

A request lives in one process, and a process makes a change in one turn of its event loop: no request sees half of
it. The first process to be asked is the one that judges. Whoever does not answer hangs or has died; it is ended, and
the one started in its place starts with the change. One that refuses what the first accepted has it taken back in all.
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
    """What to ask of each process, what takes it back, and how it is noted down for those that start later."""

    request: ChildRequest
    inverse: ChildRequest | None
    note: Callable[[], None]


class Child(Protocol):
    """`router.process.children.child_process.ChildProcess`, as far as changes need it."""

    @property
    def number(self) -> int: ...
    @property
    def client(self) -> ChildClient | None: ...
    @property
    def settled(self) -> asyncio.Event: ...
    def kill(self) -> None: ...


class Changes:
    """Makes changes one after the other. Nobody may start a process while it holds `lock`."""

    def __init__(self, children: Sequence[Child]) -> None:
        self.lock = asyncio.Lock()
        self._children = children

    async def make(self, prepare: Callable[[], Change]) -> dict[int, ChildReply]:
        """Make a change; the answers by process, or, where it was refused, the refusal alone.

        Raises:
            AdminError: nobody serves, or it had to be taken back.
        """
        async with self.lock:
            await asyncio.gather(*(child.settled.wait() for child in self._children))
            change = prepare()
            children = list(self._children)
            answers = await self._judged(change, children)
            if not _accepted(answers.values()):
                return answers
            answers |= await self._ask(children, change.request)
            refusals = {number: answer for number, answer in answers.items() if not answer.is_success}
            if refusals:
                raise await self._taken_back(change, answers, refusals)
            change.note()
            return answers

    async def _judged(self, change: Change, children: list[Child]) -> dict[int, ChildReply]:
        """What the first of `children` that answers says; all that were asked are taken off."""
        while children:
            if answers := await self._ask([children.pop(0)], change.request):
                return answers
        raise nobody()

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

    async def _taken_back(
        self, change: Change, answers: dict[int, ChildReply], refusals: dict[int, ChildReply]
    ) -> AdminError:
        """Undo it where it was made; a process where that fails is ended, and starts anew as things stood before."""
        made = [child for child in self._children if child.number in answers.keys() - refusals.keys()]
        undone = await self._ask(made, change.inverse) if change.inverse is not None else {}
        for child in made:
            answer = undone.get(child.number)  # who did not answer has been ended already
            if change.inverse is None or (answer is not None and not answer.is_success):
                child.kill()
        number, refusal = next(iter(refusals.items()))
        return AdminError(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            "change_taken_back",
            f"process {number} refused what process {made[0].number} accepted: {refusal.detail}; "
            "the change was taken back in all processes",
        )


def nobody() -> AdminError:
    """503: no process serves."""
    detail = "no process of the gateway serves now; it is being started, or the log says why it cannot be"
    return AdminError(HTTPStatus.SERVICE_UNAVAILABLE, "no_process", detail, headers={"retry-after": "1"})


def _accepted(answers: Iterable[ChildReply]) -> bool:
    return all(answer.is_success for answer in answers)
