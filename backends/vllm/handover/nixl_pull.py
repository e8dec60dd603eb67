"""``NixlConnector``: the decode worker reads the blocks from the prefill worker after its answer."""

from __future__ import annotations

from typing import ClassVar

from backends.vllm.handover import parameters
from backends.vllm.handover.connector import Connector, HandoverPeer, Legs
from backends.vllm.handover.parameters import HandoverError, TransferParams
from backends.vllm.handover.prefill_answer import PrefillAnswer


class NixlPull(Connector):
    """The prefill worker returns the addresses of its blocks, and the decode worker gets them unchanged.

    The lease (``kv_lease_duration``) is renewed only once the decode worker has the request. ``remote_host`` is
    ``VLLM_NIXL_SIDE_CHANNEL_HOST``, by default a loopback name. It is replaced by the worker's own host unless both
    workers are on one machine. ``remote_blocks_expiry_time`` is in the engine's own clock and means nothing here.
    """

    name: ClassVar[str] = "nixl_pull"
    vllm_names: ClassVar[tuple[str, ...]] = ("NixlConnector", "NixlPullConnector")
    lease_s: ClassVar[float | None] = 30.0
    checks: ClassVar[parameters.Checks] = {
        **parameters.HANDED_OVER,
        "remote_request_id": parameters.is_text,
        "remote_port": parameters.is_port,
    }
    """What the prefill worker's answer must have."""

    def prefill_params(self, legs: Legs) -> TransferParams:
        return {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        }

    def handed_over(self, answer: PrefillAnswer) -> TransferParams:
        self.check_end(answer)
        handed = parameters.checked_object(answer.params)
        parameters.check_members(handed, self.checks)
        if handed.get("do_remote_decode"):
            raise HandoverError("kv_transfer_params.do_remote_decode is set in an answer")
        return handed

    def decode_params(self, legs: Legs, handed: TransferParams | None) -> TransferParams:
        if handed is None:
            raise HandoverError("the prefill worker has handed nothing over")
        return with_reachable_host(handed, legs.prefill, legs.decode)


def with_reachable_host(params: TransferParams, owner: HandoverPeer, reader: HandoverPeer) -> TransferParams:
    if not misses_side_channel_host(str(params["remote_host"]), owner, reader):
        return params
    return {**params, "remote_host": owner.host}


def misses_side_channel_host(host: str, owner: HandoverPeer, reader: HandoverPeer) -> bool:
    """Return whether `owner` names a loopback `host` to a worker on another machine."""
    both_local = parameters.is_loopback(owner.host) and parameters.is_loopback(reader.host)
    return not both_local and owner.host != reader.host and parameters.is_loopback(host)
