"""``NixlConnector`` in its two directions, and ``MoRIIOConnector`` for AMD GPUs, whose mode READ is a pull, too.

MoRIIO is from its sources and its reference proxy; it needs RDMA and AMD GPUs, so Warmroute has not run it. Its default
is the mode WRITE, which is not here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from backends.vllm.handover import parameters
from backends.vllm.handover.connector import Connector, FactSource, HandoverPeer, Legs, Order, Reporter, known
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


class NixlPush(Connector):
    """Both workers get their request at once, in any order, and pair them by an equal ``X-Request-Id``.

    With different ids the decode worker never answers, and its blocks stay in use. Without ``remote_request_id`` its
    engine dies. The prefill worker's engine id and side channel must be known before. Every prefill's answer has them,
    as in pull mode (``push_scheduler.request_finished``). ``remote_host`` is a loopback name by default, as there.
    """

    name: ClassVar[str] = "nixl_push"
    vllm_names: ClassVar[tuple[str, ...]] = ("NixlPushConnector",)
    order: ClassVar[Order] = Order.TOGETHER
    same_request_id: ClassVar[bool] = True
    facts_from: ClassVar[FactSource] = FactSource.ANSWER
    cached_tokens_from: ClassVar[Reporter] = Reporter.PREFILL
    lease_s: ClassVar[float | None] = 30.0
    dropped_decode_frees: ClassVar[bool] = False

    def prefill_params(self, legs: Legs) -> TransferParams:
        return {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": legs.transfer_id}

    def introduced(self, peer: HandoverPeer, answer: PrefillAnswer) -> HandoverPeer:
        given = parameters.checked_object(answer.params)
        parameters.check_members(given, {**parameters.PEER, "remote_port": parameters.is_port})
        return replace(
            peer,
            engine_id=given["remote_engine_id"],
            side_host=given["remote_host"],
            side_port=given["remote_port"],
            tp_size=given["tp_size"],
            pp_size=given["pp_size"] if parameters.is_positive(given.get("pp_size")) else 1,
        )

    def decode_params(self, legs: Legs, handed: TransferParams | None) -> TransferParams:
        """Name the worker that will write the blocks, with a host that the decode worker can reach."""
        peer = legs.prefill
        host = peer.connector_host
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": known(peer.engine_id, "engine id"),
            "remote_host": peer.host if misses_side_channel_host(host, peer, legs.decode) else host,
            "remote_port": known(peer.side_port, "side channel port"),
            "remote_request_id": legs.transfer_id,
            "tp_size": peer.tp_size,
            "pp_size": peer.pp_size,
            "transfer_id": legs.transfer_id,
        }


def with_reachable_host(params: TransferParams, owner: HandoverPeer, reader: HandoverPeer) -> TransferParams:
    if not misses_side_channel_host(str(params["remote_host"]), owner, reader):
        return params
    return {**params, "remote_host": owner.host}


def misses_side_channel_host(host: str, owner: HandoverPeer, reader: HandoverPeer) -> bool:
    """Return whether `owner` names a loopback `host` to a worker on another machine."""
    both_local = parameters.is_loopback(owner.host) and parameters.is_loopback(reader.host)
    return not both_local and owner.host != reader.host and parameters.is_loopback(host)
