"""One replica without HTTP: ``python -m loadtest.replicas.exchanger``, started by `exchange`.

It reserves and releases load on some workers at a steady rate, as decisions do. With ``--new-blocks`` it also places
prompts on models of their caches. It shares both through Redis, or nothing, which is the cost of the decisions alone.
It prints ``ready`` once it hears the other replicas, and one line of JSON (`Report`) after SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import time
from array import array
from collections import deque

import msgspec
import uvloop

from loadtest.arguments import above_zero, positive, whole
from policies.view import WorkerId
from router.config.model import Config, RedisConfig
from router.placement.ledger import LoadAccount
from router.placement.running import LoadReservation
from router.process.shared_memory.replica_rows import ReplicaLedger
from router.replicas.fleet_placements import FleetPlacements
from router.replicas.line import ended
from router.replicas.replica import Replica
from router.residency.prompt import Prompt, PromptSource
from router.residency.residency_map import ResidencyMap

EVERY_S = 0.02
"""Decisions come in groups this far apart, so that the run measures the exchange, and not a timer per decision."""
_BLOCK_TOKENS = 16
_CACHE_BLOCKS = 30_000
_OPEN = 32
"""Requests that run at once."""
_SETTLED_S = 1.5
"""All rows are sent once a second, so after this time they have arrived."""


class Report(msgspec.Struct, frozen=True):
    """What one replica did while it decided. `own` and `others` are running requests per worker, at the end."""

    decisions_per_s: float
    sent_per_s: float
    received_per_s: float
    placements: int
    unplaced: int
    missed: int
    malformed: int
    lag_ms: float
    own: list[int]
    others: list[int]


class Decisions:
    """The accounts and models of one gateway, and requests that come and go on them.

    Each prompt has `new_blocks` blocks that no other has; with 0, workers have no models.
    """

    def __init__(self, workers: int, rate_per_s: float, new_blocks: int, seed: int) -> None:
        self.shared = ReplicaLedger()
        self.residency = ResidencyMap()
        self._new_blocks = new_blocks
        self.made = 0
        self._rate_per_s = rate_per_s
        self._rng = random.Random(seed)
        self._open: deque[tuple[LoadAccount, LoadReservation, int]] = deque()
        self._accounts = [self._account(number) for number in range(workers)]

    def _account(self, number: int) -> LoadAccount:
        worker = f"10.0.0.{number}:8000"
        account = LoadAccount(number)
        account.shared = self.shared.ledger.account(worker)
        self.residency.add(number, WorkerId(worker), _BLOCK_TOKENS, _CACHE_BLOCKS, events=not self._new_blocks)
        return account

    async def run(self) -> None:
        """Make decisions until cancelled."""
        began_s, before = time.monotonic(), self.made
        while True:
            await asyncio.sleep(EVERY_S)
            while self.made - before < (time.monotonic() - began_s) * self._rate_per_s:
                self._decide(time.monotonic())

    def _decide(self, now_s: float) -> None:
        """Reserve a request's load, and end one that is open; each publishes the row of its worker."""
        self.made += 1
        account = self._rng.choice(self._accounts)
        reservation = LoadReservation(500, 2_000, now_s)
        account.reserve(reservation)
        account.prefilled(reservation, now_s)
        if self._new_blocks:
            chain = array("Q", self._rng.randbytes(8 * self._new_blocks))
            prompt = Prompt(_BLOCK_TOKENS * self._new_blocks, PromptSource.IDS, lambda size: chain)
            self.residency.reserve(account.slot, prompt, self.made)
        self._open.append((account, reservation, self.made))
        if len(self._open) > _OPEN:
            before, oldest, ticket_id = self._open.popleft()
            before.release(oldest, now_s)
            self.residency.release(before.slot, ticket_id)

    @property
    def own(self) -> list[int]:
        """Running requests per worker."""
        return [account.running_requests for account in self._accounts]

    @property
    def others(self) -> list[int]:
        """Running requests of the other replicas per worker."""
        shared = [account.shared for account in self._accounts]
        return [row.others().running_requests for row in shared if row is not None]

    def close(self) -> None:
        """Release the ledger's memory."""
        self.shared.close()


async def exchange(args: argparse.Namespace) -> None:
    """Run one replica until SIGTERM."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    decisions = Decisions(args.workers, args.rate_per_s, args.new_blocks, args.seed)
    replica = None
    if args.url is not None:
        placements = FleetPlacements(decisions.residency)
        replica = Replica(Config(redis=RedisConfig(url=args.url)), rows=decisions.shared.rows, placements=placements)
        replica.start()
        while replica.statistics()["replicas"] < args.replicas:  # noqa: ASYNC110 - nothing says when one is heard
            await asyncio.sleep(0.05)
    watch = Watch(decisions, replica)
    deciding = asyncio.create_task(decisions.run())
    _print("ready")
    await over.wait()
    rates_per_s = watch.rates_per_s()
    await ended([deciding])
    await asyncio.sleep(_SETTLED_S)
    _print(msgspec.json.encode(_report(decisions, replica, rates_per_s)).decode())
    await asyncio.sleep(_SETTLED_S)  # one that left early would take its rows out of the others' sums
    if replica is not None:
        await replica.aclose()
    decisions.close()


class Watch:
    """Rates from now on."""

    def __init__(self, decisions: Decisions, replica: Replica | None) -> None:
        self._decisions = decisions
        self._replica = replica
        self._began_s = time.monotonic()
        self._before = self._counts()

    def _counts(self) -> tuple[int, int, int]:
        line = self._replica.line if self._replica is not None else None
        return self._decisions.made, line.sent if line is not None else 0, line.received if line is not None else 0

    def rates_per_s(self) -> tuple[float, float, float]:
        """Return decisions, messages sent and messages received per second."""
        took_s = max(1e-9, time.monotonic() - self._began_s)
        made, sent, received = (
            (now - before) / took_s for now, before in zip(self._counts(), self._before, strict=True)
        )
        return made, sent, received


def _report(decisions: Decisions, replica: Replica | None, rates_per_s: tuple[float, float, float]) -> Report:
    figures = replica.statistics() if replica is not None else {}
    return Report(
        *rates_per_s,
        figures.get("placements", 0),
        figures.get("unplaced", 0),
        figures.get("missed", 0),
        figures.get("malformed", 0),
        figures.get("lag_s", 0.0) * 1e3,
        decisions.own,
        decisions.others,
    )


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.replicas.exchanger", description=__doc__)
    parser.add_argument("--url", help="URL of Redis; without it nothing is shared")
    parser.add_argument("--replicas", type=positive, required=True, help="replicas to wait for, this one included")
    parser.add_argument("--workers", type=positive, required=True, help="workers")
    parser.add_argument("--rate-per-s", type=above_zero, required=True, help="decisions per second")
    parser.add_argument("--new-blocks", type=whole, default=0, help="new blocks of each prompt (default 0: no models)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choices")
    uvloop.run(exchange(parser.parse_args()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
