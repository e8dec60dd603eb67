"""``NixlPushConnector``: the prefill worker writes the blocks to the decode worker."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from backends.vllm.handover import parameters
from backends.vllm.handover.connector import Connector, FactSource, HandoverPeer, Legs, Order, Reporter, known
from backends.vllm.handover.nixl_pull import misses_side_channel_host
from backends.vllm.handover.parameters import TransferParams
from backends.vllm.handover.prefill_answer import PrefillAnswer


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
