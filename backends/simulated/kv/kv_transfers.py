"""Pulls between embedded workers: fields, leases and failures of vLLM 0.33's NIXL and MoRIIO, without moving bytes.

The workers' side channel is the path `SIDE_CHANNEL` of their HTTP server. A worker that reads blocks after their lease
does not notice, as in vLLM: it answers, and counts a stale read, which vLLM cannot. `backends.simulated.kv.kv_waits`
has the connectors whose decode worker waits for the prefill.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec

from backends.engine.engine import Engine
from backends.engine.request import EngineRequestState, FinishReason
from backends.foreign_json import read_json
from backends.simulated.errors import ApiError
from backends.simulated.settings import WorkerSettings
from backends.vllm.control import ProbeError, WorkerClient
from backends.worker import Endpoint

SIDE_CHANNEL = "/simulated/kv_blocks"
_ANSWER_S = 60.0
_RENEWALS = 6
"""Renewals within a lease, as in vLLM."""
_ROOM_CHECK_S = 0.02
"""Time between two looks for room in a full cache."""
_NIXL = ("remote_request_id", "remote_port")
_NEEDED = ("remote_engine_id", "remote_block_ids", "remote_host", "tp_size")


class FailedLoad(ApiError):
    """The prompt's KV cache cannot be loaded. A stream gets it as its first event, as from vLLM."""

    def __init__(self) -> None:
        super().__init__("KV load failed (kv_load_failure_policy: fail).", status=HTTPStatus.INTERNAL_SERVER_ERROR)


class SideChannelCall(msgspec.Struct, frozen=True):
    """A call of one worker to the other: it reads blocks, or has `done` with them."""

    engine_id: str
    request_id: str
    done: bool = False


class SideChannelAnswer(msgspec.Struct, frozen=True):
    """`held`: the blocks are still those of the request."""

    held: bool


@dataclass(slots=True)
class TransferFaults:
    without_params: bool = False
    failed_loads: bool = False
    slowdown: float = 1.0


class KvTransfers:
    """The connector of one worker: a pull, or none. `die` ends its engine."""

    def __init__(self, settings: WorkerSettings, engine: Engine, die: Callable[[], None]) -> None:
        self.enabled = settings.kv_connector in ("nixl_pull", "moriio_pull")
        self._moriio = settings.kv_connector == "moriio_pull"
        self._name, self._port = ("transfer_id", "remote_handshake_port") if self._moriio else _NIXL
        """The parameters that name the transfer and the port of the side channel."""
        self.engine_id = str(uuid.uuid4())
        self.address: tuple[str, int] = (settings.host, settings.port)
        """Host and port of the side channel, once the worker listens."""
        self.faults = TransferFaults()
        self.expired = self.late = self.failed = self.stale_reads = self.received = 0
        self._arriving_tokens = 0
        """Tokens of the loads that have begun."""
        self._lease_s = settings.kv_lease_s
        self._tokens_per_s = settings.kv_transfer_tokens_per_s
        self._time_scale = settings.time_scale
        self._engine = engine
        self._die = die
        self._client = WorkerClient()
        self._leases: dict[str, asyncio.TimerHandle] = {}
        """Ends of the leases, by the ids of the ended requests whose blocks wait for another worker."""
        self._requests: dict[str, str] = {}
        """These requests by the names of their transfers, where the connector has such names."""

    async def aclose(self) -> None:
        for timer in self._leases.values():
            timer.cancel()
        self._leases.clear()
        await self._client.aclose()

    # the worker that has computed the prompt

    def keeps(self, params: dict[str, Any] | None) -> bool:
        return self.enabled and _prefills(params)

    def began(self, request_id: str, identity: str, params: dict[str, Any] | None) -> None:
        """Note a new request of the engine. `identity` is the id of its answer."""

    def ended(self, request_id: str, reason: FinishReason) -> None:
        """Begin the lease of the blocks that an ended request keeps, if any."""
        if self._engine.kept_blocks(request_id) is not None:
            self._renew(request_id)

    def offered(self, state: EngineRequestState, params: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the parameters with which another worker gets an ended request's blocks; None if it keeps none.

        `params` are those of the request.
        """
        blocks = self._engine.kept_blocks(state.id)
        if blocks is None or self.faults.without_params:
            return None
        host, port = self.address
        shared = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [blocks],
            "remote_engine_id": self.engine_id,
            "remote_host": host,
            "tp_size": 1,
        }
        if not self._moriio:
            return shared | {
                "remote_request_id": state.id,
                "remote_port": port,
                "dcp_size": 1,
                "pp_size": 1,
                "remote_num_tokens": state.prompt_tokens + state.output_tokens - 1,
                "remote_prefill_cached_tokens": state.cached_tokens or 0,
                "transfer_mode": "pull",
            }
        transfer_id = str((params or {}).get("transfer_id") or f"sidecar-{state.id}")
        self._requests[transfer_id] = state.id
        return shared | {
            "remote_handshake_port": port,
            "remote_notify_port": port,
            "remote_dp_rank": 0,
            "remote_dp_rank_override": True,
            "remote_dp_size": 1,
            "remote_dp_size_local": 1,
            "transfer_id": transfer_id,
        }

    def answer(self, call: SideChannelCall) -> SideChannelAnswer:
        """Answer another worker's call; raises `ApiError` 409 if it means an earlier process."""
        if call.engine_id != self.engine_id:
            raise ApiError("another engine", status=HTTPStatus.CONFLICT)
        request_id = self._requests.get(call.request_id, call.request_id)
        timer = self._leases.get(request_id)
        if timer is None:
            self.late += call.done
            return SideChannelAnswer(False)
        timer.cancel()
        (self._free if call.done else self._renew)(request_id)
        return SideChannelAnswer(True)

    def _renew(self, request_id: str) -> None:
        loop = asyncio.get_running_loop()
        self._leases[request_id] = loop.call_later(self._lease_s, self._expire, request_id)

    def _expire(self, request_id: str) -> None:
        self.expired += 1
        self._free(request_id)

    def _free(self, request_id: str) -> None:
        del self._leases[request_id]
        self._requests = {name: one for name, one in self._requests.items() if one != request_id}
        self._engine.let_go(request_id)

    # the worker that gets it

    async def receive(self, params: dict[str, Any], tokens: int, identity: str) -> int | None:
        """Load a prompt of `tokens` as its parameters say. Return how many of them count as cached: those that the
        other worker had cached.

        None for a plain request. The other worker is notified in any case, also when the client leaves before the load
        has ended. `identity` is the id of the answer.

        Raises:
            ApiError: the load failed; or the parameters are incomplete, which ends the engine.
        """
        if not self.enabled or params.get("do_remote_prefill") is not True:
            return None
        if any(params.get(name) is None for name in (*_NEEDED, self._name, self._port)):
            self._die()
            raise ApiError("EngineCore encountered an issue.", status=HTTPStatus.INTERNAL_SERVER_ERROR)
        peer = Endpoint("http", str(params["remote_host"]), int(params[self._port]))
        call = SideChannelCall(str(params["remote_engine_id"]), str(params[self._name]))
        if self.faults.failed_loads:
            self.failed += 1
            raise FailedLoad
        try:
            answer = await self._load(peer, call, tokens)
        except ProbeError:
            self.failed += 1
            raise FailedLoad from None
        finally:
            await self._done(peer, call)
        self.received += 1
        self.stale_reads += not answer.held
        return int(params.get("remote_prefill_cached_tokens") or 0)

    async def _load(self, peer: Endpoint, call: SideChannelCall, tokens: int) -> SideChannelAnswer:
        """Wait for room, then for as long as the transfer takes, and renew the lease meanwhile."""
        await self._wait_for_room(peer, call, tokens)
        self._arriving_tokens += tokens
        try:
            return await self._transfer(peer, call, tokens)
        finally:
            self._arriving_tokens -= tokens

    async def _wait_for_room(self, peer: Endpoint, call: SideChannelCall, tokens: int) -> None:
        """As in vLLM, a prompt gets its blocks before any of them is read."""
        renewed_s = -math.inf
        while not self._engine.has_room(tokens, self._arriving_tokens):
            if time.monotonic() - renewed_s > self._lease_s / _RENEWALS:
                await self._ask(peer, call)
                renewed_s = time.monotonic()
            await asyncio.sleep(_ROOM_CHECK_S)

    async def _transfer(self, peer: Endpoint, call: SideChannelCall, tokens: int) -> SideChannelAnswer:
        first = await self._ask(peer, call)
        left_s = tokens / self._tokens_per_s * self.faults.slowdown * self._time_scale
        while left_s > 0.0:
            pause_s = min(left_s, self._lease_s / _RENEWALS)
            await asyncio.sleep(pause_s)
            left_s -= pause_s
            if left_s > 0.0:
                await self._ask(peer, call)
        return first

    async def _ask(self, peer: Endpoint, call: SideChannelCall) -> SideChannelAnswer:
        body = await self._client.post_json(peer, SIDE_CHANNEL, msgspec.json.encode(call), timeout_s=_ANSWER_S)
        return read_json(body, SideChannelAnswer)

    async def _done(self, peer: Endpoint, call: SideChannelCall) -> None:
        try:
            await self._ask(peer, msgspec.structs.replace(call, done=True))
        except ProbeError:
            return

    def statistics(self) -> dict[str, int]:
        return {
            "leased": len(self._leases),
            "received": self.received,
            "expired": self.expired,
            "late": self.late,
            "failed": self.failed,
            "stale_reads": self.stale_reads,
        }


def _prefills(params: dict[str, Any] | None) -> bool:
    return params is not None and params.get("do_remote_decode") is True
