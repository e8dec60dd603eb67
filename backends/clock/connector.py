"""A KV connector that models ``NixlConnector`` in pull mode. Loaded by vLLM; not importable without it.

vLLM's scheduler calls it. So a decode worker's request gets its blocks and waits for their content, and a prefill
worker's blocks stay in use until they are read or their lease ends, as with NIXL. A transfer takes modelled time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from vllm import envs
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats, NixlPromMetrics
from vllm.v1.request import RequestStatus

from backends.clock.settings import read_settings
from backends.clock.transfers import BlockLoad, BlockSource, Leases, SideChannel

LEASE_S = 30.0
TOKENS_PER_S = 400_000.0
"""Llama 3.1 8B has 128 KiB of KV cache per token, so this is 50 GB/s."""
_COMPLETE = (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)


@dataclass
class ClockTransfers(KVConnectorMetadata):
    """Ids of requests that the worker reports: whose blocks have been read or expired, and whose loads have ended."""

    sent: set[str] = field(default_factory=set)
    received: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)


class ClockConnector(KVConnectorBase_V1, SupportsHMA):
    """The scheduler's side; the worker has none, because nothing moves.

    ``kv_connector_extra_config`` has ``kv_lease_duration`` in seconds, as for NIXL, and ``transfer_tokens_per_s``. A
    request with incomplete parameters is computed as a plain one, whereas NIXL's engine ends.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        config = vllm_config.kv_transfer_config
        self._engine_id: str = config.engine_id
        self._lease_s = _above_zero(config, "kv_lease_duration", LEASE_S)
        self._tokens_per_s = _above_zero(config, "transfer_tokens_per_s", TOKENS_PER_S)
        self._time_scale = read_settings(os.environ).time_scale
        self._leases = Leases(self._engine_id, self._lease_s)
        self._loads: dict[str, BlockLoad] = {}
        self._stats = NixlKVConnectorStats()
        self._host = envs.VLLM_NIXL_SIDE_CHANNEL_HOST
        self._side_channel = SideChannel(self._host, self._leases)

    # a worker that reads

    def on_new_request(self, request: Any) -> None:
        """Renew the lease of a prompt's blocks from now on."""
        params = request.kv_transfer_params or {}
        source = BlockSource.of(params)
        if params.get("do_remote_prefill") and source is not None:
            self._loads[request.request_id] = BlockLoad(source, self._lease_s)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Return the tokens to load: what a decode worker lacks of the prompt."""
        load = self._loads.get(request.request_id)
        if load is None or load.begun:
            return 0, False
        tokens = len(request.prompt_token_ids or ()) - num_computed_tokens
        return (tokens, True) if tokens > 0 else (0, False)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Begin the transfer: the prompt has its blocks. With nothing to load, let the other worker's blocks go."""
        load = self._loads.get(request.request_id)
        if load is None or load.begun:
            return
        request.kv_transfer_params["do_remote_prefill"] = False
        if num_external_tokens:
            load.begin(num_external_tokens / self._tokens_per_s * self._time_scale)
        else:
            self._loads.pop(request.request_id).leave()

    # a worker that keeps

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Keep the blocks of a prompt for another worker, and return the parameters that name them."""
        load = self._loads.get(request.request_id)
        if load is not None:
            load.leave()
            if not load.begun:
                del self._loads[request.request_id]
        if not (request.kv_transfer_params or {}).get("do_remote_decode"):
            return False, None
        if request.status not in _COMPLETE or not any(block_ids):
            return False, None
        self._leases.begin(request.request_id)
        return True, {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(group) for group in block_ids],
            "remote_engine_id": self._engine_id,
            "remote_request_id": request.request_id,
            "remote_host": self._host,
            "remote_port": self._side_channel.port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": request.num_computed_tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
        }

    # each step

    def build_connector_meta(self, scheduler_output: Any) -> ClockTransfers:
        sent, expired, late = self._leases.take_ended()
        self._stats.data["num_kv_expired_reqs"] += [1] * expired
        self._stats.data["num_notifications_after_expiry"] += [1] * late
        ended = {request_id: load for request_id, load in self._loads.items() if load.begun and load.ended}
        for request_id, load in ended.items():
            del self._loads[request_id]
            self._count(load)
        return ClockTransfers(sent, set(ended), {request_id for request_id, load in ended.items() if load.failed})

    def _count(self, load: BlockLoad) -> None:
        data = self._stats.data
        if load.failed:
            data["num_failed_transfers"].append(1)
            return
        for name, value in (("transfer_duration", load.took_s), ("post_duration", 0.0)):
            data[name].append(value)
        data["bytes_transferred"].append(0)
        data["num_descriptors"].append(0)

    def get_kv_connector_stats(self) -> NixlKVConnectorStats | None:
        return None if self._stats.is_empty() else self._stats.clone_and_reset()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> NixlKVConnectorStats:
        return NixlKVConnectorStats() if data is None else NixlKVConnectorStats(data=data)

    @classmethod
    def build_prom_metrics(cls, *args: Any) -> NixlPromMetrics:
        """Return NIXL's metrics, such as ``vllm:nixl_num_kv_expired_reqs_total``."""
        return NixlPromMetrics(*args)

    def shutdown(self) -> None:
        self._side_channel.close()

    # The worker's side, which is never created.

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...
    def wait_for_layer_load(self, layer_name: str) -> None: ...
    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...
    def wait_for_save(self) -> None: ...


def _above_zero(config: Any, name: str, default: float) -> float:
    value = config.get_from_extra_config(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"kv_connector_extra_config.{name} is {value!r}; write a number above 0")
    return float(value)
