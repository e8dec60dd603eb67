"""Carry out what an operator asks of workers: several at once, with a result for each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from backends.vllm.control import ProbeError, RefusedError
from backends.vllm.operations import WorkerOperation
from router.placement.fleet.fleet import Fleet
from router.residency.residency_map import ResidencyMap
from router.workers.watcher import Watcher

log = logging.getLogger("warmroute.workers")


class WorkerOutcome(msgspec.Struct, frozen=True):
    """What became of an operation on one worker. A worker that gave no answer may have done it (`unknown`)."""

    worker: str
    outcome: Literal["done", "refused", "unknown"]
    detail: str | None = None


class WorkerOperations:
    def __init__(self, fleet: Fleet, residency: ResidencyMap, watcher: Watcher) -> None:
        self._fleet = fleet
        self._residency = residency
        self._watcher = watcher

    async def run(self, wanted: WorkerOperation, workers: Sequence[str]) -> list[WorkerOutcome]:
        """Carry out the operation on all `workers` at once, and follow it where it was done."""
        outcomes = await asyncio.gather(*(self._run(wanted, worker) for worker in workers))
        self.follow(wanted, [each.worker for each in outcomes if each.outcome == "done"])
        return outcomes

    def follow(self, wanted: WorkerOperation, workers: Iterable[str]) -> None:
        """Follow an operation that was done: forget what a reset removed, and look for other adapters.

        A view from KV events follows the event of the reset.
        """
        for worker in workers:
            if wanted.operation == "reset-prefix-cache":
                endpoint = self._fleet.get(worker)
                for candidate in endpoint.candidates if endpoint is not None else ():
                    self._residency.slot(candidate.slot).cleared()
            elif wanted.operation in ("load-lora", "unload-lora"):
                self._watcher.look_again_at(worker)

    async def _run(self, wanted: WorkerOperation, worker: str) -> WorkerOutcome:
        try:
            await self._watcher.operate(worker, wanted)
        except KeyError:
            outcome = WorkerOutcome(worker, "refused", "it has left the fleet")
        except RefusedError as error:
            outcome = WorkerOutcome(worker, "refused", error.reason)
        except ProbeError as error:
            outcome = WorkerOutcome(worker, "unknown", error.reason)
        else:
            outcome = WorkerOutcome(worker, "done")
        fields = {"worker": worker, "operation": wanted.operation, "outcome": outcome.outcome, "reason": outcome.detail}
        log.log(logging.INFO if outcome.outcome == "done" else logging.WARNING, "worker operation", extra=fields)
        return outcome

    def serving(self, model: str) -> list[str]:
        return [
            endpoint.id
            for endpoint in self._fleet.endpoints
            if endpoint.facts is not None and any(card.id == model for card in endpoint.facts.models)
        ]
