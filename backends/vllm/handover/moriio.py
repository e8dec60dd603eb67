"""``MoRIIOConnector``, for AMD GPUs.

In its mode READ the decode worker reads the blocks after the prefill worker's answer. Its default is WRITE, which is
not here. From its sources and its reference proxy; it needs RDMA and AMD GPUs, so Warmroute has not run it.
"""

from __future__ import annotations

from typing import ClassVar

from backends.vllm.handover import parameters
from backends.vllm.handover.connector import Legs, Reporter
from backends.vllm.handover.nixl_pull import NixlPull
from backends.vllm.handover.parameters import TransferParams


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
    checks: ClassVar[parameters.Checks] = {
        **parameters.HANDED_OVER,
        "remote_handshake_port": parameters.is_port,
        "remote_notify_port": parameters.is_port,
        "transfer_id": parameters.is_text,
    }

    def prefill_params(self, legs: Legs) -> TransferParams:
        return {**super().prefill_params(legs), "transfer_id": legs.transfer_id}
