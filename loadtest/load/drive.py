"""Processes that play an order, and the records that they send back.

The load is never made in the process that counts, prints and writes: its work would delay the load. Each process plays
every n-th session of the same schedule.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

import msgspec
import uvloop

from backends.simulated.settings import shipped_model_dir
from loadtest.load.datasets import first, source
from loadtest.load.order import Order
from loadtest.load.player import Player
from loadtest.load.prompts import Prompts
from loadtest.load.records import Record, record
from loadtest.workload.errors import WorkloadError
from loadtest.workload.wording import NoWords, Wording

LEAD_S = 0.25
"""Time between the last process's readiness and the beginning of the run."""
SEND_EACH_S = 0.2


class Batch(msgspec.Struct):
    """What a process sends: an empty one when it is ready, and the last one says `over`, or why it could not play."""

    records: list[Record] = []
    lags_s: list[float] = []
    over: bool = False
    problem: str = ""


class LoadError(Exception):
    """The order cannot be played; the message says why."""


def drive(order: Order, on_batch: Callable[[Batch], None]) -> None:
    """Play the order.

    Raises:
        LoadError: the order is wrong, or a process died.
    """
    context = get_context("spawn")  # no fork of a process with threads
    pipes: list[Connection] = []
    processes: list[SpawnProcess] = []
    try:
        for place in range(order.processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_play, args=(order, place, theirs), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        for pipe in pipes:
            _received(pipe)
        begin_s = time.monotonic() + LEAD_S
        for pipe in pipes:
            pipe.send(begin_s)
        _collect(pipes, on_batch)
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _collect(pipes: Sequence[Connection], on_batch: Callable[[Batch], None]) -> None:
    open_ = list(pipes)
    while open_:
        for pipe in wait(open_):
            assert isinstance(pipe, Connection)
            batch = _received(pipe)
            on_batch(batch)
            if batch.over:
                open_.remove(pipe)


def _received(pipe: Connection) -> Batch:
    try:
        batch = msgspec.msgpack.decode(pipe.recv_bytes(), type=Batch)
    except EOFError:
        raise LoadError("a process that made load has died") from None
    if batch.problem:
        raise LoadError(batch.problem)
    return batch


def wording_of(tokenizer: Path | None, seed: int) -> Wording:
    """Return the words of prompts: whole tokens of the given tokenizer, or common words."""
    return Wording(tokenizer or shipped_model_dir(), f"load {seed}")


def _play(order: Order, place: int, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that prints
    try:
        wording = wording_of(order.dataset.tokenizer, order.seed)
        uvloop.run(_run(order, wording, place, pipe))
    except (WorkloadError, NoWords, ValueError, FileNotFoundError) as error:
        pipe.send_bytes(msgspec.msgpack.encode(Batch(problem=str(error))))
    except BrokenPipeError:
        pass  # the run was stopped


async def _run(order: Order, wording: Wording, place: int, pipe: Connection) -> None:
    records: list[Record] = []
    lags_s: list[float] = []
    found = source(order.dataset, order.seed, wording)
    sessions, prompts = first(found.sessions, order.num_prompts), Prompts(order, wording, found.texts)
    player = Player(order, prompts, sessions, lambda one: records.append(record(one)), lags_s.append, place)
    encode = msgspec.msgpack.Encoder().encode
    pipe.send_bytes(encode(Batch()))
    begin_s: float = pipe.recv()
    playing = asyncio.ensure_future(player.play(begin_s))
    while not playing.done():
        await asyncio.wait([playing], timeout=SEND_EACH_S)
        pipe.send_bytes(encode(Batch(list(records), list(lags_s))))
        records.clear()
        lags_s.clear()
    await playing
    pipe.send_bytes(encode(Batch(records, lags_s, over=True)))
