"""Picks per second of ``warmroute picker``, its CPU time per pick, and the time to an answer at a third of that rate.

The bench speaks ext_proc in full duplex, as Gateways do, and the picker answers with the endpoint and the body. Workers
know the prompts, and get no request meanwhile. Bench and picker share the machine's cores, so the bench limits the rate
of small picks.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from backends.simulated.settings import shipped_model_dir
from loadtest.bench.bodies import PATH, chats, next_turns
from loadtest.bench.caller import Tally, send_each_once
from loadtest.bench.measures.sample import Sample, Samples, Setting
from loadtest.bench.proxies.entrant import Proxy, running, standins
from loadtest.fleet.cpu import tree_cpu_s
from loadtest.fleet.ports import free_ports
from loadtest.report.summary import percentile
from router.picker.protocol import ext_proc_pb2 as pb
from router.picker.protocol import names

LONG_TURNS = 108
"""Turns of a conversation whose body has 220 kB."""
CLIENTS = 32
FIGURES = {
    "small": ("picks/s, 2 kB", "CPU per pick, 2 kB", "pick p99 at a third, 2 kB"),
    "long": ("picks/s, 220 kB", "CPU per pick, 220 kB", "pick p99 at a third, 220 kB"),
}
RATES = tuple(figures[0] for figures in FIGURES.values())
CPU = tuple(figures[1] for figures in FIGURES.values())
TAILS = tuple(figures[2] for figures in FIGURES.values())
_ANSWER_LIMIT_S = 10.0
_CHUNK_BYTES = 16_384
"""Envoy reads a client's body in chunks of this size."""


@dataclass(frozen=True, slots=True)
class Picker:
    port: int
    pid: int
    worker_url: str


async def picks(proxy: Proxy, setting: Setting) -> Samples:
    """Measure picks of known prompts of 2 kB, and of next turns of a conversation of 220 kB."""
    if not proxy.program:
        return dict.fromkeys((*RATES, *CPU, *TAILS), Sample(skipped="no Warmroute"))
    with _picker(proxy.program) as picker:
        short = chats(picker.worker_url, {})
        turns = next_turns(picker.worker_url, {}, LONG_TURNS)
        proxy.inspect = None  # the proxy gets no request in this measure
        await send_each_once(picker.worker_url, [*short, next(turns)], 8)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{picker.port}") as channel:
            found: dict[str, Sample] = {}
            for kind, requests in (("small", itertools.cycle(short)), ("long", turns)):
                found |= await _measured(Asker(channel, requests), picker, FIGURES[kind], setting, proxy.seed)
    return found


class Asker:
    """Asks for workers, one gRPC stream per request, and notes how long each answer took."""

    def __init__(self, channel: grpc.aio.Channel, requests: Iterator[bytes]) -> None:
        self._method = channel.stream_stream(
            names.PROCESS,
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )
        self._requests = requests
        self.tally = Tally()

    async def ask(self) -> None:
        body = next(self._requests).partition(b"\r\n\r\n")[2]
        began_s = time.perf_counter()
        try:
            async with asyncio.timeout(_ANSWER_LIMIT_S):
                answer = await self._answered(body)
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            self.tally.fail(str(error) or "no answer in time")
            return
        if answer.WhichOneof("response") != "request_headers":
            self.tally.fail(f"refused: {answer.immediate_response.status.code}")
            return
        self.tally.good += 1
        self.tally.first_byte_s.append(time.perf_counter() - began_s)

    async def _answered(self, body: bytes) -> pb.ProcessingResponse:
        """Return the first answer, after all have arrived."""
        call = self._method()
        for message in _messages(body):
            await call.write(message)
        answers = [answer async for answer in call]
        return answers[0] if answers else pb.ProcessingResponse()


def _messages(body: bytes) -> Iterator[pb.ProcessingRequest]:
    head = {":method": "POST", ":path": PATH, ":authority": "bench", "content-type": "application/json"}
    duplex = pb.ProcessingMode.FULL_DUPLEX_STREAMED
    yield pb.ProcessingRequest(
        request_headers=pb.HttpHeaders(
            headers=pb.HeaderMap(
                headers=[pb.HeaderValue(key=name, raw_value=value.encode()) for name, value in head.items()]
            )
        ),
        protocol_config=pb.ProtocolConfiguration(request_body_mode=duplex),
    )
    for start in range(0, len(body), _CHUNK_BYTES):
        end = start + _CHUNK_BYTES
        part = pb.HttpBody(body=body[start:end], end_of_stream=end >= len(body))
        yield pb.ProcessingRequest(request_body=part)


async def _measured(
    asker: Asker, picker: Picker, figures: tuple[str, str, str], setting: Setting, seed: int
) -> Samples:
    """Measure the closed loop, then an open loop at a third of its rate."""
    rate_of, cpu_of, tail_of = figures
    await _closed(asker, setting.window_s / 4)
    asker.tally = Tally()
    cpu_s, from_s = tree_cpu_s(picker.pid), time.perf_counter()
    await _closed(asker, setting.window_s)
    took_s, spent_s, closed = time.perf_counter() - from_s, tree_cpu_s(picker.pid) - cpu_s, asker.tally
    rate = closed.good / took_s
    asker.tally = Tally()
    await _open(asker, max(1.0, rate / 3), setting.window_s, random.Random(seed))
    tail_ms = percentile(asker.tally.first_byte_s, 0.99) * 1e3 if asker.tally.first_byte_s else 0.0
    return {
        rate_of: Sample.of(rate, rate, closed),
        cpu_of: Sample.of(spent_s / max(1, closed.good) * 1e6, rate, closed),
        tail_of: Sample.of(tail_ms, rate / 3, asker.tally),
    }


async def _closed(asker: Asker, window_s: float) -> None:
    end_s = time.perf_counter() + window_s

    async def client() -> None:
        while time.perf_counter() < end_s:
            await asker.ask()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


async def _open(asker: Asker, rate: float, window_s: float, rng: random.Random) -> None:
    """Ask at Poisson arrivals."""
    loop = asyncio.get_running_loop()
    due_s = from_s = loop.time()
    async with asyncio.TaskGroup() as group:
        while due_s < from_s + window_s:
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            group.create_task(asker.ask())
            due_s += rng.expovariate(rate)


@contextmanager
def _picker(program: tuple[str, ...]) -> Iterator[Picker]:
    with tempfile.TemporaryDirectory(prefix="warmroute-bench-") as folder, ExitStack() as stack:
        place = stack.enter_context(standins(1, Path(folder), kv_events=True))
        (url,) = place.worker_urls
        port, admin = free_ports(1), free_ports(1)
        command = [*program, "picker", "--grpc-port", str(port), "--secure-serving=false", "--admin-port", str(admin)]
        command += ["--log-level", "warning", "--model-dir", str(shipped_model_dir()), "--worker", url]
        process = stack.enter_context(running("picker", command, port, place.folder))
        yield Picker(port, process.pid, url)
