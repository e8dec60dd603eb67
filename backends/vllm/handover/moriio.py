"""``MoRIIOConnector``, for AMD GPUs.

In its mode READ the decode worker reads the blocks after the prefill worker's answer. In WRITE, its default, the
prefill worker writes them. From its sources and its reference proxy; it needs RDMA and AMD GPUs, so Warmroute has not
run it.
"""

from __future__ import annotations

import math
from typing import ClassVar

from backends.vllm.handover import parameters
from backends.vllm.handover.connector import Connector, HandoverPeer, Legs, Order, Reporter
from backends.vllm.handover.nixl_pull import NixlPull
from backends.vllm.handover.parameters import TransferParams

HANDSHAKE_PORT = 6_301
NOTIFY_PORT = 61_005


class MoRIIOPull(NixlPull):
    """Mode READ: as `NixlPull`, with a ``transfer_id`` and two ports. A prefill that ends by a stop keeps no blocks.

    The lease is ``defer_timeout``. Nothing renews it.
    """

    name: ClassVar[str] = "moriio_pull"
    vllm_names: ClassVar[tuple[str, ...]] = ("MoRIIOConnector",)
    kv_roles: ClassVar[tuple[str, str]] = ("kv_producer", "kv_consumer")
    extra_config: ClassVar[str | None] = '{"read_mode":true}'
    cached_tokens_from: ClassVar[Reporter] = Reporter.PREFILL
    ends_by_length: ClassVar[bool] = True
    lease_s: ClassVar[float | None] = 60.0
    unmatched_s: ClassVar[float] = 60.0
    checks: ClassVar[parameters.Checks] = {
        "do_remote_prefill": lambda value: value is True,
        "remote_block_ids": parameters.is_block_ids,
        "remote_engine_id": parameters.is_text,
        "remote_host": parameters.is_host,
        "remote_handshake_port": parameters.is_port,
        "remote_notify_port": parameters.is_port,
        "tp_size": parameters.is_positive,
        "transfer_id": parameters.is_text,
    }

    def prefill_params(self, legs: Legs) -> TransferParams:
        """Ask the worker to keep the blocks for another one."""
        return {**super().prefill_params(legs), "transfer_id": legs.transfer_id}


class MoRIIO(Connector):
    """Mode WRITE. Both workers get their request at once, and the request id names both addresses (`request_id`)."""

    name: ClassVar[str] = "moriio"
    vllm_names: ClassVar[tuple[str, ...]] = ("MoRIIOConnector",)
    order: ClassVar[Order] = Order.TOGETHER
    same_request_id: ClassVar[bool] = True
    cached_tokens_from: ClassVar[Reporter] = Reporter.PREFILL
    unmatched_s: ClassVar[float] = math.inf
    dropped_decode_frees: ClassVar[bool] = False

    def prefill_params(self, legs: Legs) -> TransferParams:
        """Ask the worker to write the blocks to the decode worker."""
        return {"do_remote_decode": True, "do_remote_prefill": False, **_other(legs.decode, legs.transfer_id)}

    def decode_params(self, legs: Legs, handed: TransferParams | None) -> TransferParams:
        """Name the worker that will write the blocks."""
        return {"do_remote_decode": False, "do_remote_prefill": True, **_other(legs.prefill, legs.transfer_id)}


def _other(peer: HandoverPeer, transfer_id: str) -> TransferParams:
    return {
        "remote_engine_id": peer.engine_id,
        "remote_block_ids": None,
        "remote_host": peer.connector_host,
        "remote_port": None,
        "remote_handshake_port": peer.side_port or HANDSHAKE_PORT,
        "remote_notify_port": peer.notify_port or NOTIFY_PORT,
        "remote_dp_rank": peer.rank or 0,
        "remote_dp_size": peer.dp_size,
        "remote_tp_size": peer.tp_size,
        "tp_size": peer.tp_size,
        "transfer_id": transfer_id,
    }


def request_id(legs: Legs) -> str:
    """Return the ``X-Request-Id`` of both requests."""
    prefill, decode = _zmq_address(legs.prefill), _zmq_address(legs.decode)
    return f"___prefill_addr_{prefill}___decode_addr_{decode}_{legs.transfer_id}"


def _zmq_address(peer: HandoverPeer) -> str:
    handshake, notify = peer.side_port or HANDSHAKE_PORT, peer.notify_port or NOTIFY_PORT
    return f"host:{peer.connector_host},handshake:{handshake},notify:{notify}"
