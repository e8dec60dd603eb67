"""The connectors whose decode worker waits for the prefill, between embedded workers: NIXL push and Mooncake.

A decode worker holds blocks for the prompt from its request on (`waiting`), and asks the prefill worker again and
again whether its prefill has ended. As in vLLM, it goes on after its client has left, and if the other worker has died
or aborted the prefill. These blocks are counted and not taken from the engine.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

from backends.engine.engine import Engine
from backends.engine.request import EngineRequestState, FinishReason
from backends.simulated.errors import ApiError
from backends.simulated.kv.kv_transfers import FailedLoad, KvTransfers, SideChannelAnswer, SideChannelCall
from backends.simulated.settings import WorkerSettings
from backends.vllm.control import ProbeError
from backends.worker import Endpoint

_ASK_AGAIN_S: Final = 0.002
_ASK_SELDOM_S: Final = 0.1


class WaitingTransfers(KvTransfers):
    """What push and Mooncake have in common. Both workers know a transfer by one key."""

    def __init__(self, settings: WorkerSettings, engine: Engine, die: Callable[[], None]) -> None:
        super().__init__(settings, engine, die)
        self.enabled = True
        self._keys: dict[str, str] = {}
        """Keys of the requests that run and whose blocks another worker gets, by request id."""
        self._ended: dict[str, str] = {}
        """Ids of the ended requests whose blocks another worker gets, by key."""
        self._waiting: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        for task in self._waiting:
            task.cancel()
        await super().aclose()

    @abstractmethod
    def _key(self, identity: str, params: dict[str, Any]) -> str: ...

    @abstractmethod
    def _peer(self, params: dict[str, Any]) -> Endpoint | None:
        """Return the prefill worker that a decode request names; None if it is not named, so nothing will come.

        Raises:
            ApiError: the set of parameters is incomplete, which has ended the engine.
        """

    # the worker that computes the prompt

    def began(self, request_id: str, identity: str, params: dict[str, Any] | None) -> None:
        if params is not None and self.keeps(params):
            self._keys[request_id] = self._key(identity, params)

    def ended(self, request_id: str, reason: FinishReason) -> None:
        key = self._keys.pop(request_id, None)
        if key is not None and self._engine.kept_blocks(request_id) is not None:
            self._ended[key] = request_id
            self._renew(request_id)

    def answer(self, call: SideChannelCall) -> SideChannelAnswer:
        request_id = self._ended.get(call.request_id)
        if request_id is None:
            return super().answer(call)
        return super().answer(SideChannelCall(call.engine_id, request_id, call.done))

    def _free(self, request_id: str) -> None:
        super()._free(request_id)
        self._ended = {key: other for key, other in self._ended.items() if other != request_id}

    # the worker that gets it

    async def receive(self, params: dict[str, Any], tokens: int, identity: str) -> int | None:
        """Wait until the other worker has computed a prompt of `tokens`, and return that all of them count as cached.

        None for a plain request. The wait goes on when the client leaves.

        Raises:
            ApiError: the load failed.
        """
        if params.get("do_remote_prefill") is not True:
            return None
        peer = self._peer(params)
        if self.faults.failed_loads:
            self.failed += 1
            raise FailedLoad
        call = SideChannelCall(str(params.get("remote_engine_id")), self._key(identity, params))
        task = asyncio.get_running_loop().create_task(self._wait(peer, call, tokens))
        self._waiting.add(task)
        task.add_done_callback(self._waited)
        await asyncio.shield(task)
        self.received += 1
        return tokens

    def _waited(self, task: asyncio.Task[None]) -> None:
        self._waiting.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.failed += 1

    async def _wait(self, peer: Endpoint | None, call: SideChannelCall, tokens: int) -> None:
        """Wait for the end of the prefill and for the transfer. It goes on when the other worker has died."""
        met, pause_s = False, _ASK_AGAIN_S
        while peer is None or not await self._prefilled(peer, call, met):
            met = True
            await asyncio.sleep(pause_s)
            pause_s = min(2.0 * pause_s, _ASK_SELDOM_S)
        await asyncio.sleep(tokens / self._tokens_per_s * self.faults.slowdown * self._time_scale)
        await self._done(peer, call)

    async def _prefilled(self, peer: Endpoint, call: SideChannelCall, met: bool) -> bool:
        """Return whether the prefill has ended. A worker that cannot be met at first fails the load."""
        try:
            return (await self._ask(peer, call)).held
        except ProbeError:
            if met:
                return False
            raise FailedLoad from None

    def statistics(self) -> dict[str, int]:
        return super().statistics() | {"waiting": len(self._waiting)}


class PushTransfers(WaitingTransfers):
    """``NixlPushConnector``: the key is the id of the answer, which follows from X-Request-Id and the path."""

    def _key(self, identity: str, params: dict[str, Any]) -> str:
        return identity

    def _peer(self, params: dict[str, Any]) -> Endpoint | None:
        names = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size")
        if any(params.get(name) is None for name in names):
            self._die()
            raise ApiError("EngineCore encountered an issue.", status=HTTPStatus.INTERNAL_SERVER_ERROR)
        return Endpoint("http", str(params["remote_host"]), int(params["remote_port"]))

    def offered(self, state: EngineRequestState, params: dict[str, Any] | None) -> dict[str, Any] | None:
        offered = super().offered(state, params)
        if offered is None:
            return None
        del offered["remote_prefill_cached_tokens"]
        return offered | {"transfer_mode": "push"}


class MooncakeTransfers(WaitingTransfers):
    """``MooncakeConnector``: the key is ``transfer_id``, and a prefill that ends by a stop token sends nothing."""

    def _key(self, identity: str, params: dict[str, Any]) -> str:
        return str(params.get("transfer_id"))

    def _peer(self, params: dict[str, Any]) -> Endpoint | None:
        if any(params.get(name) is None for name in ("remote_engine_id", "remote_bootstrap_addr", "transfer_id")):
            return None
        server = urlsplit(str(params["remote_bootstrap_addr"]))
        return Endpoint("http", server.hostname or "", server.port or 0)

    def offered(self, state: EngineRequestState, params: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return None: the answer of a prefill carries nothing."""
        return None

    def ended(self, request_id: str, reason: FinishReason) -> None:
        if reason is not FinishReason.LENGTH:
            self._keys.pop(request_id, None)
            self._engine.let_go(request_id)
        super().ended(request_id, reason)

    async def _wait(self, peer: Endpoint | None, call: SideChannelCall, tokens: int) -> None:
        try:
            await asyncio.wait_for(super()._wait(peer, call, tokens), self._lease_s)
        except TimeoutError:
            raise FailedLoad from None


WAITING_TRANSFERS: Final[dict[str, type[WaitingTransfers]]] = {
    "nixl_push": PushTransfers,
    "mooncake": MooncakeTransfers,
}
