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
from router.process.child_client import CHANGE_S, Asking, Member, Reply, Unanswered

log = logging.getLogger("warmroute.process")


@dataclass(frozen=True, slots=True)
class Change:
    """What to ask of each process, what takes it back, and how it is noted down for those that start later."""

    asking: Asking
    inverse: Asking | None
    note: Callable[[], None]


class Keeping(Protocol):
    """`router.process.child_process.Keeper`, as far as changes need it."""

    @property
    def number(self) -> int: ...
    @property
    def member(self) -> Member | None: ...
    @property
    def settled(self) -> asyncio.Event: ...
    def kill(self) -> None: ...


class Changes:
    """Makes changes one after the other. Nobody may start a process while it holds `lock`."""

    def __init__(self, keepers: Sequence[Keeping]) -> None:
        self.lock = asyncio.Lock()
        self._keepers = keepers

    async def make(self, prepare: Callable[[], Change]) -> dict[int, Reply]:
        """Make a change; the answers by process, or, where it was refused, the refusal alone.

        Raises:
            AdminError: nobody serves, or it had to be taken back.
        """
        async with self.lock:
            await asyncio.gather(*(keeper.settled.wait() for keeper in self._keepers))
            change = prepare()
            keepers = list(self._keepers)
            answers = await self._judged(change, keepers)
            if not _accepted(answers.values()):
                return answers
            answers |= await self._ask(keepers, change.asking)
            refusals = {number: answer for number, answer in answers.items() if not answer.is_success}
            if refusals:
                raise await self._taken_back(change, answers, refusals)
            change.note()
            return answers

    async def _judged(self, change: Change, keepers: list[Keeping]) -> dict[int, Reply]:
        """What the first of `keepers` that answers says; all that were asked are taken off."""
        while keepers:
            if answers := await self._ask([keepers.pop(0)], change.asking):
                return answers
        raise nobody()

    async def _ask(self, keepers: Sequence[Keeping], asking: Asking) -> dict[int, Reply]:
        answers = await asyncio.gather(*(self._ask_one(keeper, asking) for keeper in keepers))
        return {keeper.number: answer for keeper, answer in zip(keepers, answers, strict=True) if answer is not None}

    async def _ask_one(self, keeper: Keeping, asking: Asking) -> Reply | None:
        member = keeper.member
        if member is None:
            return None
        try:
            return await member.ask(asking, CHANGE_S)
        except Unanswered as error:
            log.error("process ended: it did not answer a change", extra={"reason": str(error)})
            keeper.kill()
            return None

    async def _taken_back(self, change: Change, answers: dict[int, Reply], refusals: dict[int, Reply]) -> AdminError:
        """Undo it where it was made; a process where that fails is ended, and starts anew as things stood before."""
        made = [keeper for keeper in self._keepers if keeper.number in answers.keys() - refusals.keys()]
        undone = await self._ask(made, change.inverse) if change.inverse is not None else {}
        for keeper in made:
            answer = undone.get(keeper.number)  # who did not answer has been ended already
            if change.inverse is None or (answer is not None and not answer.is_success):
                keeper.kill()
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


def _accepted(answers: Iterable[Reply]) -> bool:
    return all(answer.is_success for answer in answers)
