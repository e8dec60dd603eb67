"""Send a sequence through a router, one request at a time, and find the worker of each.

A worker counts the prompt tokens that it looks up in its cache. The worker whose count has risen has the request. A
held request is a stream of thousands of tokens. Closing the stream releases it; it has ended once its worker runs one
request less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import httpx

from backends.vllm.metrics import parse_metrics
from backends.worker import LoadReport
from loadtest.fleet.process import StartError
from loadtest.peers.choices.sequence import Step
from loadtest.peers.contenders import Site
from loadtest.peers.workers import Worker

HELD_TOKENS = 20_000
LIMIT_S = 20.0
SETTLE_S = 0.03
"""Pause after the end of a response, so that the router notices the end, too."""


def run_through(site: Site, steps: Sequence[Step]) -> list[int]:
    """Return the number of the worker that received each step.

    Raises:
        StartError: a request failed, or the worker that received it could not be determined.
    """
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=site.url, timeout=LIMIT_S, trust_env=False))
        driver = _Driver(client, site)
        stack.callback(driver.close)
        return [driver.step(number, step) for number, step in enumerate(steps)]


class _Driver:
    def __init__(self, client: httpx.Client, site: Site) -> None:
        self._client = client
        self._site = site
        self._held: dict[int, tuple[int, httpx.Response]] = {}
        self._streams: dict[int, Iterator[bytes]] = {}
        self._counts = [_looked_up(worker) for worker in site.workers]

    def step(self, number: int, step: Step) -> int:
        for released in step.releases:
            self._release(released)
        response = self._send(step)
        if step.hold:
            # Dropping the iterator closes its response.
            self._streams[number] = response.iter_raw()
            next(self._streams[number])
        else:
            response.read()
        place = self._who()
        if step.hold:
            self._held[number] = (place, response)
        time.sleep(SETTLE_S)
        return place

    def close(self) -> None:
        for _, response in self._held.values():
            response.close()

    def _send(self, step: Step) -> httpx.Response:
        tokens = HELD_TOKENS if step.hold else 1
        body = {"model": self._site.model, "prompt": step.prompt, "max_tokens": tokens, "ignore_eos": True}
        request = self._client.build_request("POST", "/v1/completions", json={**body, "stream": step.hold})
        response = self._client.send(request, stream=True)
        if response.status_code != 200:
            raise StartError(f"{self._site.url} answered {response.status_code}: {response.read()[:200]!r}")
        return response

    def _release(self, number: int) -> None:
        place, response = self._held.pop(number)
        worker = self._site.workers[place]
        running = sum(held == place for held, _ in self._held.values())
        response.close()
        del self._streams[number]
        _wait(lambda: _running(worker) <= running, f"{worker.url} still runs what was let go")
        time.sleep(SETTLE_S)

    def _who(self) -> int:
        counts = self._counts

        def risen() -> list[int]:
            self._counts = [_looked_up(worker) for worker in self._site.workers]
            return [place for place, count in enumerate(self._counts) if count > counts[place]]

        end_s = time.monotonic() + LIMIT_S
        while not (places := risen()) and time.monotonic() < end_s:
            time.sleep(0.01)
        if len(places) != 1:
            raise StartError(f"{len(places)} workers instead of one looked up a prompt")
        return places[0]


def _wait(done: Callable[[], bool], otherwise: str) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not done():
        if time.monotonic() > end_s:
            raise StartError(otherwise)
        time.sleep(0.01)


def _looked_up(worker: Worker) -> int:
    return sum(load.prefix_queries or 0 for load in _loads(worker))


def _running(worker: Worker) -> int:
    return sum(load.running + load.waiting for load in _loads(worker))


def _loads(worker: Worker) -> tuple[LoadReport, ...]:
    return parse_metrics(httpx.get(f"{worker.url}/metrics", timeout=LIMIT_S).raise_for_status().text).loads
