"""Read from ``/server_info`` what a worker's KV connector is. vLLM serves it with ``VLLM_SERVER_DEV_MODE=1`` alone."""

from __future__ import annotations

import msgspec

from backends.foreign_json import json_decoder
from backends.vllm.control import RefusedError, WorkerClient
from backends.worker import ConnectorFacts, Endpoint

PATH = "/server_info?config_format=json"
MAX_BYTES = 1 << 20
"""vLLM's answer has some 50 kB."""
MAX_CHARACTERS = 256
_MAX_NUMBER_BYTES = 32


class _ExtraConfig(msgspec.Struct):
    """The members that count, as they came. Others may be anything, and are not decoded."""

    kv_lease_duration: msgspec.Raw = msgspec.Raw()
    bidirectional_kv_xfer: msgspec.Raw = msgspec.Raw()


class _TransferConfig(msgspec.Struct):
    kv_connector: str | None = None
    kv_role: str | None = None
    kv_load_failure_policy: str | None = None
    kv_connector_extra_config: _ExtraConfig | None = None


class _ModelConfig(msgspec.Struct):
    dtype: str | None = None


class _VllmConfig(msgspec.Struct):
    kv_transfer_config: _TransferConfig | None = None
    model_config: _ModelConfig | None = None


class _VllmEnvironment(msgspec.Struct, frozen=True):
    host: str | None = msgspec.field(default=None, name="VLLM_NIXL_SIDE_CHANNEL_HOST")
    port: int | None = msgspec.field(default=None, name="VLLM_NIXL_SIDE_CHANNEL_PORT")


class _ServerInfo(msgspec.Struct):
    vllm_config: _VllmConfig
    vllm_env: _VllmEnvironment = _VllmEnvironment()


_DECODER = json_decoder(_ServerInfo)


async def read_connector(client: WorkerClient, endpoint: Endpoint, timeout_s: float) -> ConnectorFacts | None:
    """Return what the worker says about its KV connector; None if it does not say, or says something unknown.

    It stays so for as long as the worker's process runs.

    Raises:
        ProbeError: no answer, a failure of the worker, or a refusal for a while or for want of a key. It may say so
            later.
    """
    try:
        return parse_server_info(await client.get(endpoint, PATH, timeout_s, MAX_BYTES))
    except RefusedError as refusal:
        if refusal.status not in (404, 405):
            raise
        return None


def parse_server_info(body: bytes) -> ConnectorFacts | None:
    """Return the facts in an answer of ``/server_info``; None for another document."""
    try:
        info = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    transfer, model = info.vllm_config.kv_transfer_config or _TransferConfig(), info.vllm_config.model_config
    extra = transfer.kv_connector_extra_config or _ExtraConfig()
    return ConnectorFacts(
        name=_short(transfer.kv_connector),
        role=_short(transfer.kv_role),
        load_failure_policy=_short(transfer.kv_load_failure_policy),
        lease_s=_seconds(extra.kv_lease_duration),
        bidirectional=bytes(extra.bidirectional_kv_xfer) == b"true",
        dtype=_short(None if model is None else model.dtype),
        side_host=_short(info.vllm_env.host),
        side_port=info.vllm_env.port,
    )


def _seconds(text: msgspec.Raw) -> float | None:
    """Return a JSON number; None for anything else."""
    try:
        return float(bytes(text)) if len(bytes(text)) <= _MAX_NUMBER_BYTES else None
    except ValueError:
        return None


def _short(text: str | None) -> str | None:
    return None if text is None else text[:MAX_CHARACTERS]
