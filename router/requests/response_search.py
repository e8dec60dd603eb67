"""Find the worker that has a stored response which this gateway does not remember, by asking the workers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from enum import Enum

from backends.vllm.control import LargeAnswerError, ProbeError, ProbeFault, RefusedError, WorkerClient
from policies.view import WorkerId
from router.errors import ErrorKind, RequestError
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.fleet.fleet import Fleet
from router.placement.fleet.health import WorkerState
from router.requests.pins import Pins, stored_response_id
from router.requests.worker_keys import WorkerKeys

ANSWER_S = 2.0
"""How long one worker may take to say whether it has the response."""
SEARCH_S = 5.0
"""Time for a search, with its wait for a turn."""
SEARCHES = 16
"""Searches at once. So a worker gets at most this many questions at once, whatever ids clients send."""
WAITING = 256
"""Searches that wait for a turn. Further ones are refused."""
AT_ONCE = 8
"""Workers that one search asks at once."""
DENIED_S = 5.0
"""How long the answer "no worker has it" is remembered."""
DENIALS = 10_000
RETRY_AFTER_S = 2.0
_ID_CHARACTERS = 261
_DENIALS = (400, 404, 405, 410, 501)
_NO_ENTRY = (401, 403)


class _Verdict(Enum):
    HAS_IT = 1
    DENIES = 2
    NO_ENTRY = 3
    """It wants other credentials of the client."""
    SILENT = 4


def may_be_stored(response_id: str) -> bool:
    """Return whether vLLM could have made this id, so that a search is worthwhile and a path can carry it."""
    if len(response_id) > _ID_CHARACTERS or not response_id.startswith("resp_") or not response_id.isascii():
        return False
    return response_id[len("resp_") :].replace("_", "").replace("-", "").replace(".", "").isalnum()


class ResponseSearch:
    """Asks workers for stored responses, and pins what it finds.

    `keys` has the workers' own credentials; None gives them the client's.
    """

    def __init__(
        self,
        fleet: Fleet,
        pins: Pins,
        keys: WorkerKeys | None,
        client: WorkerClient,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._fleet = fleet
        self._pins = pins
        self._keys = keys
        self._client = client
        self._loop = loop
        self._turns = asyncio.Semaphore(SEARCHES)
        self._searches = 0
        self._denied: OrderedDict[tuple[str, tuple[str, ...]], float] = OrderedDict()

    def close(self) -> None:
        self._client.close()

    async def find(self, response_id: str, models: tuple[str, ...], credentials: bytes | None) -> None:
        """Pin the response to the worker that has it; do nothing if all deny it. `models` may have made it; with none,
        any model.

        Raises:
            RequestError: WORKER_FAILED, since a worker gave no answer; INVALID_API_KEY, since one refused the client's
                `credentials`; TOO_MANY_REQUESTS.
        """
        key = response_id, models
        if self._denied.get(key, 0.0) > self._loop.time():
            return
        if self._searches >= SEARCHES + WAITING:
            raise _too_many(response_id)
        self._searches += 1
        asks = False
        try:
            async with asyncio.timeout(SEARCH_S):
                async with self._turns:
                    asks = True
                    if self._pins.worker(response_id) is None:  # else another search has found it
                        await self._ask_all(key, credentials)
        except TimeoutError:
            raise (_too_late(response_id) if asks else _too_many(response_id)) from None
        finally:
            self._searches -= 1

    async def _ask_all(self, key: tuple[str, tuple[str, ...]], credentials: bytes | None) -> None:
        response_id, models = key
        endpoints, lanes = self._places(models), asyncio.Semaphore(AT_ONCE)
        verdicts: dict[str, _Verdict] = {}
        tasks = [self._loop.create_task(self._ask(lanes, endpoint, response_id, credentials)) for endpoint in endpoints]
        try:
            for answered in asyncio.as_completed(tasks):
                endpoint_id, verdict = await answered
                if verdict is _Verdict.HAS_IT:
                    self._pins.learn(response_id, WorkerId(endpoint_id))
                    return
                verdicts[endpoint_id] = verdict
        finally:  # without an await: a compiled coroutine that is cancelled must not wait again
            for task in tasks:
                task.cancel()
        self._not_found(key, verdicts)

    def _not_found(self, key: tuple[str, tuple[str, ...]], verdicts: dict[str, _Verdict]) -> None:
        silent = [worker for worker, verdict in verdicts.items() if verdict is _Verdict.SILENT]
        if silent:
            message = (
                f"No worker that answers has response {key[0]!r}, and {len(silent)} of {len(verdicts)} gave no answer "
                f"({', '.join(silent[:5])}); try again later"
            )
            raise RequestError(ErrorKind.WORKER_FAILED, message, retry_after_s=RETRY_AFTER_S)
        if _Verdict.NO_ENTRY in verdicts.values():
            raise RequestError(ErrorKind.INVALID_API_KEY, "a worker refuses these credentials")
        self._denied[key] = self._loop.time() + DENIED_S
        self._denied.move_to_end(key)
        if len(self._denied) > DENIALS:
            self._denied.popitem(last=False)

    def _places(self, models: tuple[str, ...]) -> list[FleetEndpoint]:
        """Return the workers that may have the response, ready ones first: also those that have not answered yet, since
        their silence says nothing. If no worker lists the models, any worker may have served them."""
        all_ = [
            endpoint for endpoint in self._fleet.endpoints if not self._fleet.candidate_sets.only_prefills(endpoint)
        ]
        serving = [one for one in all_ if one.facts is None or any(one.may_serve(model) for model in models)]
        known = any(one.facts is not None for one in serving)
        return sorted(serving if known else all_, key=lambda one: one.state is not WorkerState.READY)

    async def _ask(
        self,
        lanes: asyncio.Semaphore,
        endpoint: FleetEndpoint,
        response_id: str,
        credentials: bytes | None,
    ) -> tuple[str, _Verdict]:
        line = None if self._keys is None else self._keys.line(endpoint.id)
        value = credentials if line is None else line.partition(b": ")[2]
        headers = {"authorization": value.decode("latin-1")} if value else {}
        async with lanes:
            try:
                path = f"/v1/responses/{response_id}"
                body = await self._client.get(endpoint.endpoint, path, ANSWER_S, headers=headers)
            except LargeAnswerError:
                return endpoint.id, _Verdict.HAS_IT  # refusals are read only in part
            except ProbeError as error:
                return endpoint.id, _judged(error, clients=line is None)
        return endpoint.id, _Verdict.HAS_IT if stored_response_id([body]) == response_id else _Verdict.DENIES


def _judged(error: ProbeError, *, clients: bool) -> _Verdict:
    """Return what a failed question says; `clients`: it had the client's credentials.

    Where no process listens, no response is stored.
    """
    if isinstance(error, RefusedError):
        if error.status in _DENIALS:
            return _Verdict.DENIES
        return _Verdict.NO_ENTRY if clients and error.status in _NO_ENTRY else _Verdict.SILENT
    return _Verdict.DENIES if error.fault is ProbeFault.REFUSED else _Verdict.SILENT


def _too_late(response_id: str) -> RequestError:
    message = f"the workers took too long to say whether they have response {response_id!r}; try again later"
    return RequestError(ErrorKind.WORKER_FAILED, message, retry_after_s=RETRY_AFTER_S)


def _too_many(response_id: str) -> RequestError:
    message = f"too many unknown responses are being looked for; try {response_id!r} again later"
    return RequestError(ErrorKind.TOO_MANY_REQUESTS, message, retry_after_s=RETRY_AFTER_S)
