"""``NixlPushConnector``: the prefill worker writes the blocks to the decode worker."""

from __future__ import annotations

import math
from typing import ClassVar

from backends.vllm.handover.connector import Connector, Legs, Order, Reporter, known
from backends.vllm.handover.parameters import TransferParams


class NixlPush(Connector):
    """Both workers get their request at once, in any order, and pair them by an equal ``X-Request-Id``.

    With different ids the decode worker never answers, and its blocks stay in use. Without ``remote_request_id`` its
    engine dies. The prefill worker's engine id and side channel must be known before.
    """

    name: ClassVar[str] = "nixl_push"
    vllm_names: ClassVar[tuple[str, ...]] = ("NixlPushConnector",)
    order: ClassVar[Order] = Order.TOGETHER
    same_request_id: ClassVar[bool] = True
    cached_tokens_from: ClassVar[Reporter] = Reporter.PREFILL
    unmatched_s: ClassVar[float] = math.inf
    dropped_decode_frees: ClassVar[bool] = False

    def prefill_params(self, legs: Legs) -> TransferParams:
        """Ask the worker to write the blocks to another one."""
        return {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": legs.transfer_id}

    def decode_params(self, legs: Legs, handed: TransferParams | None) -> TransferParams:
        """Name the worker that will write the blocks."""
        peer = legs.prefill
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": known(peer.engine_id, "engine id"),
            "remote_host": peer.connector_host,
            "remote_port": known(peer.side_port, "side channel port"),
            "remote_request_id": legs.transfer_id,
            "tp_size": peer.tp_size,
            "pp_size": peer.pp_size,
            "transfer_id": legs.transfer_id,
        }
