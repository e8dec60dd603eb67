"""The host memory of an embedded worker, and what it gets from that of others: vLLM's OffloadingConnector with peers.

Each full block is copied to host memory, and announced there. A request whose ``kv_transfer_params`` name a
``remote_kv_source`` asks that worker for what it lacks. One that names a ``remote_prefiller`` waits until that worker
has computed the prompt, for a request with ``remote_decoder`` and the same id. A worker that cannot be reached has
nothing, as in vLLM; a transfer that fails ends the request. No bytes move.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from backends.engine.chain import BlockHasher
from backends.engine.engine import Engine
from backends.engine.host_blocks import HostBlocks
from backends.foreign_json import read_json
from backends.simulated.kv.kv_transfers import FailedLoad, TransferFaults
from backends.simulated.settings import WorkerSettings
from backends.vllm.control import ProbeError, WorkerClient
from backends.worker import Endpoint

PEER_LOOKUP: Final = "/simulated/peer_blocks"
_ANSWER_S = 60.0
_ASK_AGAIN_S = 0.005
WAIT_S: Final = 30.0
"""Time for which a request waits for the prefill that it names, and for which a worker knows of such a prefill."""


class PeerLookup(msgspec.Struct, frozen=True):
    """How many of these blocks, from the first on, does the worker hold in host memory?

    With `prefill`, the id of a transfer: and has it been asked to compute them for that?
    """

    hashes: list[int]
    prefill: str | None = None


class PeerHeld(msgspec.Struct, frozen=True):
    blocks: int


class PeerTier:
    def __init__(self, settings: WorkerSettings, engine: Engine) -> None:
        blocks = settings.kv_host_blocks
        self.host = HostBlocks(4 * engine.num_blocks if blocks is None else blocks)
        self.faults = TransferFaults()
        self.pulled_tokens = self.pulls = self.failed = 0
        self._tokens_per_s = settings.kv_transfer_tokens_per_s
        self._time_scale = settings.time_scale
        self._engine = engine
        self._client = WorkerClient()
        self._prefills: dict[str, float] = {}
        """When this worker was asked to compute a prompt for another one, by the ids of the transfers."""

    async def aclose(self) -> None:
        await self._client.aclose()

    def answer(self, lookup: PeerLookup) -> PeerHeld:
        known = lookup.prefill is None or lookup.prefill in self._prefills
        return PeerHeld(self.host.prefix(lookup.hashes) if known else 0)

    async def load(
        self, params: dict[str, Any] | None, prompt: Sequence[int], lora_name: str | None, cache_salt: str | None
    ) -> int:
        """Load what host memory here and at the source, if one is named, has of a prompt. Return the tokens.

        Raises:
            ApiError: the load failed.
        """
        self._note_prefill(params)
        size, hashes = self._engine.block_size, list[int]()
        try:
            tokens = array("I", prompt[: max(0, len(prompt) - 1)])
        except (OverflowError, TypeError):
            return 0  # the engine refuses the prompt
        BlockHasher(size, lora_name, cache_salt).extend(hashes, tokens)
        own = max(self.host.prefix(hashes), self._engine.cached_tokens(hashes, len(prompt)) // size)
        source = _source(params, "remote_prefiller") or _source(params, "remote_kv_source")
        if source is None or own == len(hashes):
            return own * size
        return await self._pull(source, hashes, own) * size

    def _note_prefill(self, params: dict[str, Any] | None) -> None:
        named = None if params is None else params.get("remote_decoder")
        transfer_id = named.get("kv_request_id") if isinstance(named, dict) else None
        if isinstance(transfer_id, str) and transfer_id:
            now_s = time.monotonic()
            self._prefills = {one: at_s for one, at_s in self._prefills.items() if now_s - at_s < WAIT_S}
            self._prefills[transfer_id] = now_s

    async def _pull(self, source: _NamedPeer, hashes: list[int], own: int) -> int:
        """Return how many blocks the source had and has sent, with those that are here."""
        began_s = time.monotonic()
        try:
            blocks = await self._ask(source, hashes)
            while source.prefill is not None and blocks < len(hashes) and time.monotonic() - began_s < WAIT_S:
                await asyncio.sleep(_ASK_AGAIN_S)
                blocks = await self._ask(source, hashes)
        except (ProbeError, msgspec.DecodeError):
            return own
        if blocks <= own:
            return own
        if self.faults.failed_loads:
            self.failed += 1
            raise FailedLoad
        tokens = (blocks - own) * self._engine.block_size
        await asyncio.sleep(tokens / self._tokens_per_s * self.faults.slowdown * self._time_scale)
        self.pulls += 1
        self.pulled_tokens += tokens
        return blocks

    async def _ask(self, source: _NamedPeer, hashes: list[int]) -> int:
        lookup = msgspec.json.encode(PeerLookup(hashes, source.prefill))
        body = await self._client.post_json(source.endpoint, PEER_LOOKUP, lookup, timeout_s=_ANSWER_S)
        return min(read_json(body, PeerHeld).blocks, len(hashes))

    def statistics(self) -> dict[str, int]:
        return {
            "pulls": self.pulls,
            "pulled_tokens": self.pulled_tokens,
            "failed": self.failed,
            "host_blocks": len(self.host),
        }


class _NamedPeer(NamedTuple):
    """A worker to get blocks from; `prefill` is the id of the transfer if it computes them first."""

    endpoint: Endpoint
    prefill: str | None


def _source(params: dict[str, Any] | None, role: str) -> _NamedPeer | None:
    """Return the worker that `role` names; None if it is not named in full, as in vLLM."""
    named = None if params is None else params.get(role)
    if not isinstance(named, dict) or not named.get("kv_request_id"):
        return None
    host, port = named.get("remote_host"), named.get("remote_port")
    if not isinstance(host, str) or not host or not isinstance(port, int) or not 0 < port < 65_536:
        return None
    return _NamedPeer(Endpoint("http", host, port), str(named["kv_request_id"]) if role == "remote_prefiller" else None)
