"""Compare places to ingest KV events: ``python -m loadtest.bench.parts.ingest_placement [--rounds N]``.

An event loop answers small requests, each with a look-up in the residency index and 100 us of Python (about the cost in
the gateway). A publisher sends events meanwhile. Rounds of these four alternate:

  none         no events
  loop         events are ingested on the loop, 1 ms per iteration, as in `router/workers/event_pump.py`
  thread       a thread receives and ingests whole batches, under a lock that look-ups take, too
  thread-1ms   the same, with the interpreter's switch interval at 1 ms in place of 5

The command prints the clients' p50, p99 and worst response times. Four clients run in a process of their own, in a
closed loop with pauses, so that the loop is about a third busy.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import statistics
import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from multiprocessing import Queue
from typing import Any, cast

import uvloop
import zmq

from backends.vllm.events import split_frames
from loadtest.bench import publisher
from loadtest.fleet.ports import free_ports
from policies.view import WorkerId
from router.residency.chain import SEED, extend_chain, pack_tokens
from router.residency.prompt import Prompt, PromptSource
from router.residency.residency_map import ResidencyMap
from router.workers.event_pump import EventPump

CLIENTS = 4
PAUSE_S = 0.001
WORK_S = 100e-6
PLACEMENTS = ("none", "loop", "thread", "thread-1ms")
Lock = AbstractContextManager[Any]


def make_prompt() -> Prompt:
    """Return a prompt of 2,048 tokens."""
    rng = random.Random(0)
    tokens = [rng.getrandbits(15) for _ in range(2_048)]
    prompt = Prompt(len(tokens), PromptSource.IDS, lambda size: extend_chain(SEED, pack_tokens(tokens), size))
    prompt.chain(publisher.BLOCK_TOKENS)
    return prompt


class Server(asyncio.Protocol):
    """Answers each line after a look-up and some work."""

    def __init__(self, residency: ResidencyMap, prompt: Prompt, lock: Lock) -> None:
        self._residency, self._prompt, self._lock = residency, prompt, lock

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        with self._lock:
            self._residency.match(self._prompt, [0])
        end_s = time.perf_counter() + WORK_S
        while time.perf_counter() < end_s:
            pass
        self._transport.write(data)


async def client(port: int, seconds: float) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    times, end_s = [], time.monotonic() + seconds
    while time.monotonic() < end_s:
        started_s = time.perf_counter()
        writer.write(b"x\n")
        await reader.readline()
        times.append(time.perf_counter() - started_s)
        await asyncio.sleep(PAUSE_S * random.random() * 2)
    writer.close()
    return times


def clients(port: int, seconds: float, results: Queue[list[float]]) -> None:
    """Run the closed loops and put their sorted answer times on `results`."""

    async def combined() -> list[list[float]]:
        return await asyncio.gather(*(client(port, seconds) for _ in range(CLIENTS)))

    results.put(sorted(one for times in uvloop.run(combined()) for one in times))


def take(residency: ResidencyMap, frames: list[bytes]) -> None:
    if residency.ingest(0, *split_frames(frames)).replay_from is not None:
        residency.replay_ended(0, False)  # subscribed in mid-stream, and there is no replay socket


def follow_in_thread(endpoint: str, residency: ResidencyMap, lock: Lock, ended: threading.Event) -> None:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
    socket.setsockopt(zmq.RCVTIMEO, 100)
    socket.subscribe(b"")
    socket.connect(endpoint)
    while not ended.is_set():
        try:
            frames = socket.recv_multipart()
        except zmq.Again:
            continue
        with lock:
            take(residency, frames)
    socket.close(0)


def follow_on_loop(endpoint: str, residency: ResidencyMap) -> None:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
    socket.subscribe(b"")
    pump = EventPump(lambda seconds: None)

    def drain(deadline_s: float) -> bool:
        while True:
            try:
                take(residency, socket.recv_multipart(zmq.DONTWAIT))
            except zmq.Again:
                return False
            if time.perf_counter() >= deadline_s:
                return True

    asyncio.get_running_loop().add_reader(socket.FD, lambda: pump.wake(drain))
    socket.connect(endpoint)
    pump.wake(drain)


async def serve(placement: str, endpoint: str, seconds: float) -> tuple[list[float], int]:
    residency = ResidencyMap()
    residency.add(0, WorkerId("w:1"), publisher.BLOCK_TOKENS, 200_000, placement != "none")
    lock: Lock = threading.Lock() if placement.startswith("thread") else nullcontext()
    ended = threading.Event()
    if placement == "loop":
        follow_on_loop(endpoint, residency)
    elif placement != "none":
        threading.Thread(target=follow_in_thread, args=(endpoint, residency, lock, ended), daemon=True).start()
    prompt = make_prompt()
    server = await asyncio.get_running_loop().create_server(lambda: Server(residency, prompt, lock), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    results: Queue[list[float]] = multiprocessing.Queue()
    process = multiprocessing.Process(target=clients, args=(port, seconds, results))
    process.start()
    times = await asyncio.to_thread(results.get)
    process.join()
    ended.set()
    return times, residency.state(0).blocks


def measure(placement: str, blocks_per_s: float, seconds: float) -> list[float]:
    port = free_ports(1)
    source = multiprocessing.Process(target=publisher.publish, args=(port, blocks_per_s), daemon=True)
    if placement != "none":
        source.start()
    sys.setswitchinterval(0.001 if placement == "thread-1ms" else 0.005)
    times, blocks = uvloop.run(serve(placement, f"tcp://127.0.0.1:{port}", seconds))
    if placement != "none":
        source.kill()
        source.join()
        assert blocks > 1_000, "no event arrived: the round shows nothing"
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--blocks-per-s", type=float, default=50_000)
    args = parser.parse_args()
    rows: dict[str, list[tuple[float, float, float, int]]] = {placement: [] for placement in PLACEMENTS}
    for _ in range(args.rounds):
        for placement in PLACEMENTS:
            times = measure(placement, args.blocks_per_s, args.seconds)
            row = times[len(times) // 2], times[int(len(times) * 0.99)], times[-1], len(times)
            rows[placement].append(row)
            print(placement, *(f"{value * 1e3:.2f} ms" for value in row[:3]), f"{row[3]} answers", flush=True)
    print(f"\n{args.blocks_per_s:,.0f} blocks/s, medians of {args.rounds} rounds, ms\n{'placement':>12} p50 p99 worst")
    for placement, results in rows.items():
        medians = (statistics.median(result[column] for result in results) * 1e3 for column in range(3))
        print(f"{placement:>12} " + " ".join(f"{value:.2f}" for value in medians))


if __name__ == "__main__":
    main()
