"""Drive load through a proxy and read the CPU time of its processes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from loadtest.bench.standin import MODEL
from loadtest.drive.http import Client
from loadtest.report.summary import percentile


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU microseconds of the proxy's process tree per unit, over `units` requests or tokens; `errors` must be 0.

    `first_byte_ms` are p50 and p99 of the time to the first body byte.
    """

    cpu_us: float
    units: int
    errors: int
    first_byte_ms: tuple[float, float]


def cpu_s(pid: int) -> float:
    """User and system seconds of a process and its living children.

    From the scheduler's nanosecond account where the kernel keeps one, else in ticks of 10 ms.
    """
    root = psutil.Process(pid)
    return sum(_process_cpu_s(process) for process in (root, *root.children(recursive=True)))


def _process_cpu_s(process: psutil.Process) -> float:
    try:
        accounts = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/schedstat")]
        return sum(int(account.split()[0]) for account in accounts) / 1e9
    except (OSError, ValueError, IndexError):
        return float(sum(process.cpu_times()[:2]))


def chat_body(stream: bool, max_tokens: int, system_chars: int, tail: str) -> bytes:
    """A chat request whose prompt is a shared system text of `system_chars` characters and a short question."""
    line = "Answer in one short paragraph and name the function you speak about. "
    system = (line * (system_chars // len(line) + 1))[:system_chars]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": f"Question {tail}"}]
    return msgspec.json.encode({"model": MODEL, "messages": messages, "stream": stream, "max_tokens": max_tokens})


async def _one(client: Client, request: bytes) -> float:
    begin_s = time.perf_counter()
    first_s = 0.0
    async with client.exchange(request) as response:
        if response.status != 200:
            raise RuntimeError(f"status {response.status}")
        async for _ in response.stream():
            first_s = first_s or time.perf_counter()
    return first_s - begin_s


async def requests(url: str, pid: int, count: int, connections: int, body_chars: int) -> Cost:
    """Closed loop of `connections` clients sending `count` non-streaming requests in all."""
    client = Client(url)
    bodies = [chat_body(False, 16, body_chars, f"number {index}") for index in range(64)]
    ready = [client.request_bytes("POST", "/v1/chat/completions", body) for body in bodies]
    left = iter(range(count))
    latencies: list[float] = []
    errors = 0

    async def worker() -> None:
        nonlocal errors
        for index in left:
            try:
                latencies.append(await _one(client, ready[index % len(ready)]))
            except (OSError, RuntimeError):
                errors += 1

    before_s = cpu_s(pid)
    await asyncio.gather(*(worker() for _ in range(connections)))
    spent_s = cpu_s(pid) - before_s
    client.close()
    first = (percentile(latencies, 0.5) * 1e3, percentile(latencies, 0.99) * 1e3)
    return Cost(spent_s / count * 1e6, count, errors, first)


async def streams(url: str, pid: int, count: int, tokens: int, body_chars: int) -> Cost:
    """`count` concurrent streams of `tokens` tokens; CPU per token once all streams are up."""
    client = Client(url)
    begun = asyncio.Semaphore(0)
    latencies: list[float] = []
    errors = 0

    async def stream(index: int) -> None:
        nonlocal errors
        body = chat_body(True, tokens, body_chars, f"number {index}")
        begin_s = time.perf_counter()
        seen = False
        try:
            async with client.exchange(client.request_bytes("POST", "/v1/chat/completions", body)) as response:
                if response.status != 200:
                    raise RuntimeError(f"status {response.status}")
                async for _ in response.stream():
                    if not seen:
                        seen = True
                        latencies.append(time.perf_counter() - begin_s)
                        begun.release()
        except (OSError, RuntimeError):
            errors += 1
        finally:
            if not seen:
                begun.release()

    tasks = [asyncio.create_task(stream(index)) for index in range(count)]
    for _ in range(count):
        await begun.acquire()
    before_s, from_s = cpu_s(pid), time.perf_counter()
    # the middle of the streams' life only: neither their starts nor their ends
    window_s = tokens * 0.02 * 0.6
    await asyncio.sleep(window_s)
    spent_s, took_s = cpu_s(pid) - before_s, time.perf_counter() - from_s
    await asyncio.gather(*tasks)
    client.close()
    units = int(count * took_s / 0.02)
    first = (percentile(latencies, 0.5) * 1e3, percentile(latencies, 0.99) * 1e3)
    return Cost(spent_s / units * 1e6, units, errors, first)
