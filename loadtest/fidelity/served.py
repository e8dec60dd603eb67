"""Play a scenario over HTTP against a vLLM server in clock mode, in stretched time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from backends.vllm.control import ProbeError, WorkerClient
from backends.vllm.probe import probe
from backends.worker import KvEventSource, RankCache, WorkerFacts, parse_endpoint
from loadtest.drive.chat import Timing, chat
from loadtest.drive.http import Client
from loadtest.fidelity.events import listening, settled
from loadtest.fidelity.outcome import Outcome, Played
from loadtest.fidelity.scenarios import Arrival, Scenario

LEAD_S = 0.5
"""Time between the begin of a run and its first arrival, in real seconds."""
_PREEMPTIONS = "vllm:num_preemptions_total"


class ServingError(RuntimeError):
    """The server did not do what the comparison needs; the message has the details."""


@dataclass(frozen=True, slots=True)
class Served:
    """One run.

    `front_end_s` is the real time that each request spent outside the engine before its first token, where known: the
    client's time to first token minus the engine's.
    """

    played: Played
    front_end_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Server:
    """A vLLM server in clock mode, with the settings that the comparison needs."""

    url: str
    model: str
    cache: RankCache
    events: KvEventSource
    time_scale: float

    async def play(self, scenario: Scenario, progress: Callable[[], None] = lambda: None) -> Served:
        """Empty the cache and run `scenario`.

        Raises:
            ServingError: a request failed, or events were lost.
        """
        async with listening(self.events) as log, httpx.AsyncClient(base_url=self.url, timeout=30) as control:
            await self._empty(control)
            preempted = await _preemptions(control)
            begin_s, begin_wall_s = asyncio.get_running_loop().time() + LEAD_S, time.time() + LEAD_S
            timings = await self._send(scenario, begin_s, progress)
            _refuse_failures(scenario, timings)
            await settled(log)
            if log.lost:
                raise ServingError(f"{log.lost} event batches of {self.url} did not arrive")
            history = log.history(begin_wall_s, self.time_scale)
            preempted = await _preemptions(control) - preempted
        outcomes = tuple(
            self._outcome(arrival, timing, begin_s) for arrival, timing in zip(scenario.arrivals, timings, strict=True)
        )
        return Served(Played(outcomes, history, preempted), _front_end_s(timings))

    async def _empty(self, control: httpx.AsyncClient) -> None:
        """Reset the prefix cache and run one step, because an idle engine publishes the reset with its next step's
        events.

        The one token and its prompt fill no block.
        """
        (await control.post("/reset_prefix_cache")).raise_for_status()
        body = {"model": self.model, "prompt": "x", "max_tokens": 1}
        (await control.post("/v1/completions", json=body)).raise_for_status()

    async def _send(self, scenario: Scenario, begin_s: float, progress: Callable[[], None]) -> list[Timing]:
        client = Client(self.url)

        async def send(arrival: Arrival, due_s: float) -> Timing:
            await asyncio.sleep(due_s - asyncio.get_running_loop().time())
            timing = await chat(client, arrival.body(self.model), due_s)
            progress()
            return timing

        try:
            if scenario.one_at_a_time:
                now = asyncio.get_running_loop().time
                return [await send(arrival, now()) for arrival in scenario.arrivals]
            sends = [send(arrival, begin_s + arrival.at_s * self.time_scale) for arrival in scenario.arrivals]
            return list(await asyncio.gather(*sends))
        finally:
            client.close()

    def _outcome(self, arrival: Arrival, timing: Timing, begin_s: float) -> Outcome:
        assert timing.ttft_s is not None
        assert timing.end_s is not None
        arrived_s = (timing.started_s - begin_s) / self.time_scale
        return Outcome(
            id=arrival.id,
            prompt_tokens=timing.prompt_tokens,
            cached_tokens=timing.cached_tokens,
            output_tokens=timing.completion_tokens,
            arrived_s=arrived_s,
            first_token_s=arrived_s + timing.ttft_s / self.time_scale,
            last_token_s=(timing.end_s - begin_s) / self.time_scale,
        )


async def learn(url: str, time_scale: float) -> Server:
    """Read the settings of the server at `url`.

    Raises:
        ServingError: it does not answer, or does not report a cache size or event publisher.
    """
    async with WorkerClient() as client:
        try:
            facts = await probe(client, parse_endpoint(url), timeout_s=10)
        except ProbeError as error:
            raise ServingError(f"{url}: {error.reason}") from error
    return _server(url, facts, time_scale)


def _server(url: str, facts: WorkerFacts, time_scale: float) -> Server:
    if not (facts.caches and facts.models and facts.event_sources):
        raise ServingError(f"{url}: {'; '.join(facts.notes) or 'no cache size, model or event publisher'}")
    return Server(url, facts.models[0].id, facts.caches[0], facts.event_sources[0], time_scale)


async def _preemptions(control: httpx.AsyncClient) -> int:
    page = (await control.get("/metrics")).text
    values = [line.rsplit(" ", 1)[1] for line in page.splitlines() if line.startswith(_PREEMPTIONS)]
    return int(sum(map(float, values)))


def _refuse_failures(scenario: Scenario, timings: list[Timing]) -> None:
    failed = [timing.error for timing in timings if timing.error is not None]
    if failed:
        raise ServingError(f"{len(failed)} of {len(timings)} requests of {scenario.name!r} failed: {failed[0]}")
    short = [
        arrival.id
        for arrival, timing in zip(scenario.arrivals, timings, strict=True)
        if timing.completion_tokens != arrival.answer_tokens or timing.ttft_s is None
    ]
    if short:
        raise ServingError(
            f"{len(short)} answers have another length than was asked for, the first one's is {short[0]}"
        )


def _front_end_s(timings: list[Timing]) -> tuple[float, ...]:
    return tuple(
        timing.ttft_s - timing.engine_ttft_s
        for timing in timings
        if timing.ttft_s is not None and timing.engine_ttft_s is not None
    )
