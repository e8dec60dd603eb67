"""The same arrivals through a vLLM server in clock mode, and through the engine model in virtual time.

Under load the two sides do not step at exactly the same moments. A request may look up a block just before it is
stored, or just after it is evicted, where the other side had it. The block's history on the side that missed it shows
the cause of a difference.
"""

import asyncio
import time
from array import array
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import httpx
import xxhash
import zmq
import zmq.asyncio

from backends.clock.settings import ClockSettings
from backends.engine.chain import SEED, BlockHasher
from backends.engine.engine import Engine, EngineRequest
from backends.engine.events import BlocksCached, BlocksEvicted
from backends.simulated.settings import shipped_model_dir
from backends.vllm.control import WorkerClient
from backends.vllm.events import AllBlocksCleared, BlockRemoved, BlockStored, decode_batch, split_frames
from backends.vllm.probe import probe
from backends.vllm.render import ChatRenderer
from backends.worker import parse_endpoint
from loadtest.fleet.vllm import VllmWorker
from loadtest.load.http import Client
from loadtest.load.seen import chat
from tests.real_vllm.virtual_worker import VirtualWorker, unmatched

KIB_PER_TOKEN = 1
"""KV size per token of the shipped model shape."""
LEAD_S = 0.5
SETTLE_S = 0.3
"""An idle worker's events count as complete after it has sent none for this time."""
EVICTED, NOT_YET_COMPUTED, OTHER = "evicted by then on one side", "not yet computed on one side", "other"


@dataclass(frozen=True)
class Outcome:
    """One request. Times are modelled seconds from the scenario's begin: real ones divided by the time scale."""

    id: str
    prompt_tokens: int
    cached_tokens: int
    arrived_s: float
    first_token_s: float


@dataclass
class BlockHistory:
    """When physical copies of blocks came (1) and went (-1), by block hash (`BlockHasher`'s, on both sides)."""

    changes: dict = field(default_factory=dict)
    evictions: int = 0

    def stored(self, block_hash, at_s):
        self.changes.setdefault(block_hash, []).append((at_s, 1))

    def removed(self, block_hash, at_s):
        self.changes.setdefault(block_hash, []).append((at_s, -1))
        self.evictions += 1

    def why_missed(self, block_hash, outcome):
        """Return why the request missed the block, which it looked up between its arrival and its first token."""
        changes = self.changes.get(block_hash, ())
        before = [change for at_s, change in changes if at_s <= outcome.arrived_s]
        if 1 not in before:
            return NOT_YET_COMPUTED
        fewest = copies = sum(before)
        for at_s, change in changes:
            if outcome.arrived_s < at_s <= outcome.first_token_s:
                copies += change
                fewest = min(fewest, copies)
        return OTHER if fewest else EVICTED


@dataclass(frozen=True)
class Played:
    """One side's run of one scenario, outcomes in the order of its arrivals."""

    outcomes: tuple
    history: BlockHistory
    preemptions: int

    @property
    def cached(self):
        """Sum of the cached tokens."""
        return sum(outcome.cached_tokens for outcome in self.outcomes)


def server_flags(executable, profile, cache_tokens, time_scale, *, async_scheduling):
    """Return a vLLM server that the model can play: the profile's batch limits, no jitter."""
    flags = ["--max-num-batched-tokens", str(profile.max_num_batched_tokens)]
    flags += ["--max-num-seqs", str(profile.max_num_seqs), "--max-model-len", str(cache_tokens // 2)]
    flags += [] if async_scheduling else ["--no-async-scheduling"]
    clock = ClockSettings(profile=profile.name, kv_gib=cache_tokens * KIB_PER_TOKEN / (1 << 20), time_scale=time_scale)
    return VllmWorker(executable=executable, clock=clock, flags=tuple(flags))


def prompt_ids(scenario):
    """Return the token ids of each request by its id, rendered as the gateway renders them."""
    renderer = ChatRenderer.load(shipped_model_dir())
    return {
        arrival.id: renderer.encode(renderer.render(arrival.body("")), add_special_tokens=False)
        for arrival in scenario.arrivals
    }


def causes(ours, theirs, prompts, block_size):
    """Return the cause of each request whose cached tokens differ."""
    found = []
    for our, their in zip(ours.outcomes, theirs.outcomes, strict=True):
        if our.cached_tokens != their.cached_tokens:
            missed, at_miss = (ours, our) if our.cached_tokens < their.cached_tokens else (theirs, their)
            tokens = at_miss.cached_tokens // block_size * block_size + block_size
            hashes = []
            BlockHasher(block_size, None, None).extend(hashes, array("I", prompts[our.id][:tokens]))
            found.append(missed.history.why_missed(hashes[-1], at_miss))
    return found


def modelled(scenario, prompts, profile, num_blocks, async_scheduling):
    """Run `scenario` through a new engine."""
    history = BlockHistory()

    def note(result):
        end_s = result.started_s + result.duration_s
        for event in result.events:
            for block_hash in event.hashes if isinstance(event, BlocksCached | BlocksEvicted) else ():
                (history.stored if isinstance(event, BlocksCached) else history.removed)(block_hash, end_s)

    engine = Engine(profile, sample=unmatched, num_blocks=num_blocks, jitter=0.0, async_scheduling=async_scheduling)
    worker = VirtualWorker(engine, note)
    states = []
    for arrival in scenario.arrivals:
        if scenario.one_at_a_time:
            worker.finish()
        arrived_s = worker.now_s if scenario.one_at_a_time else arrival.at_s
        states.append(worker.arrive(EngineRequest(arrival.id, prompts[arrival.id], arrival.answer_tokens), arrived_s))
    worker.finish()
    outcomes = [Outcome(s.id, s.prompt_tokens, s.cached_tokens, s.arrived_s, s.first_token_s) for s in states]
    return Played(tuple(outcomes), history, int(worker.statistics()["preemptions"]))


async def facts(url):
    """Return the model, cache and event publisher of the server at `url`."""
    async with WorkerClient() as client:
        found = await probe(client, parse_endpoint(url), timeout_s=10)
    return found.models[0].id, found.caches[0], found.event_sources[0]


async def served(url, scenario, time_scale):
    """Empty the server's cache and run `scenario` over HTTP."""
    model, _, source = await facts(url)
    async with listening(source) as payloads, httpx.AsyncClient(base_url=url, timeout=30) as control:
        (await control.post("/reset_prefix_cache")).raise_for_status()
        # An idle engine publishes the reset with its next step's events. One token and its prompt fill no block.
        body = {"model": model, "prompt": "x", "max_tokens": 1}
        (await control.post("/v1/completions", json=body)).raise_for_status()
        preempted = await _preemptions(control)
        begin_s, begin_wall_s = asyncio.get_running_loop().time() + LEAD_S, time.time() + LEAD_S
        timings = await _send(url, model, scenario, begin_s, time_scale)
        preempted = await _preemptions(control) - preempted
        seen = -1
        while seen != len(payloads):
            seen = len(payloads)
            await asyncio.sleep(SETTLE_S)
    outcomes = []
    for arrival, timing in zip(scenario.arrivals, timings, strict=True):
        assert (timing.error, timing.completion_tokens) == (None, arrival.answer_tokens)
        arrived_s = (timing.began_s - begin_s) / time_scale
        first_token_s = arrived_s + timing.ttft_s / time_scale
        outcomes.append(Outcome(arrival.id, timing.prompt_tokens, timing.cached_tokens, arrived_s, first_token_s))
    return Played(tuple(outcomes), _history(payloads, begin_wall_s, time_scale), preempted)


async def _send(url, model, scenario, begin_s, time_scale):
    client, now = Client(url), asyncio.get_running_loop().time

    async def send(arrival, due_s):
        await asyncio.sleep(due_s - now())
        return await chat(client, arrival.body(model), due_s)

    try:
        if scenario.one_at_a_time:
            return [await send(arrival, now()) for arrival in scenario.arrivals]
        return await asyncio.gather(*(send(each, begin_s + each.at_s * time_scale) for each in scenario.arrivals))
    finally:
        client.close()


async def _preemptions(control):
    page = (await control.get("/metrics")).text
    lines = [line for line in page.splitlines() if line.startswith("vllm:num_preemptions_total")]
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines))


@asynccontextmanager
async def listening(source):
    """Subscribe while the block runs; yield the list that gets each batch."""
    payloads, context = [], zmq.asyncio.Context()
    socket = context.socket(zmq.SUB)
    socket.set_hwm(0)
    socket.setsockopt_string(zmq.SUBSCRIBE, source.topic)
    socket.connect(source.endpoint)

    async def receive():
        due = None
        while True:
            seq, payload = split_frames(await socket.recv_multipart())
            assert due in (None, seq), "lost events"
            due = seq + 1
            payloads.append(payload)

    task = asyncio.create_task(receive())
    try:
        yield payloads
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        socket.close(linger=0)
        context.term()


def _history(payloads, begin_s, time_scale):
    """Return when blocks came and went after the last reset, in modelled seconds since `begin_s` (wall clock)."""
    history, local = BlockHistory(), {}
    for payload in payloads:
        batch = decode_batch(payload)
        at_s = (batch.ts - begin_s) / time_scale
        for event in batch.events:
            if isinstance(event, BlockStored):
                parent = SEED if event.parent_block_hash is None else local[event.parent_block_hash]
                for index, engine_hash in enumerate(event.block_hashes):
                    tokens = array("I", event.token_ids[index * event.block_size : (index + 1) * event.block_size])
                    parent = local[engine_hash] = xxhash.xxh3_64_intdigest(tokens.tobytes(), seed=parent)
                    history.stored(parent, at_s)
            elif isinstance(event, BlockRemoved):
                for engine_hash in event.block_hashes:
                    history.removed(local[engine_hash], at_s)
            elif isinstance(event, AllBlocksCleared):
                history = BlockHistory()
    return history
