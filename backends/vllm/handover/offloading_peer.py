"""``OffloadingConnector`` with its tier of peers: blocks move between the host memory of workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from backends.vllm.handover.connector import Connector, HandoverPeer, Legs, Order, Reporter
from backends.vllm.handover.parameters import TransferParams, labelled_address

PEER_LABEL: Final = "kv_peer"
"""The label of a worker whose side channel is not at the usual address."""

SIDE_CHANNEL_PORT = 5_710
"""vLLM's default of ``VLLM_P2P_SIDE_CHANNEL_PORT``; to any port, each data-parallel rank adds its number."""

SERVED_TIERS: Final = frozenset({"CPU"})
"""Tiers of KV events from which a worker serves others at once. Files and remote stores are there for all."""


class OffloadingPeer(Connector):
    """Each member of the parameters is named after the other worker of the transfer, which pairs by ``kv_request_id``.

    The decode worker waits for the blocks, at most 30 s, and computes what has not come. The prefill worker keeps
    unclaimed blocks for ``unbound_store_timeout_s``.
    """

    name: ClassVar[str] = "offloading_peer"
    vllm_names: ClassVar[tuple[str, ...]] = ("OffloadingConnector",)
    extra_config: ClassVar[str | None] = (
        '{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":68719476736,"secondary_tiers":[{"type":"p2p"}]}'
    )
    order: ClassVar[Order] = Order.TOGETHER
    cached_tokens_from: ClassVar[Reporter] = Reporter.PREFILL
    marks_prefill: ClassVar[bool] = False

    def peer(self, host: str, rank: int | None, labels: Mapping[str, str]) -> HandoverPeer:
        address = labelled_address(labels.get(PEER_LABEL, ""), host)
        if address is None:
            return HandoverPeer(host=host, rank=rank)
        return HandoverPeer(host=host, side_host=address[0], side_port=address[1] + (rank or 0), rank=rank)

    def prefill_params(self, legs: Legs) -> TransferParams:
        return {"remote_decoder": {"kv_request_id": legs.transfer_id}}

    def decode_params(self, legs: Legs, handed: TransferParams | None) -> TransferParams:
        return {"remote_prefiller": _source(legs.transfer_id, legs.prefill)}


def pull_params(transfer_id: str, source: HandoverPeer) -> TransferParams:
    """Return the parameters of a request that takes from `source` what it holds of the prompt, and computes the rest.

    They may be joined with those of a prefill request, and with no others.
    """
    return {"remote_kv_source": _source(transfer_id, source)}


def _source(transfer_id: str, source: HandoverPeer) -> TransferParams:
    port = source.side_port or SIDE_CHANNEL_PORT + (source.rank or 0)
    return {"kv_request_id": transfer_id, "remote_host": source.connector_host, "remote_port": port}
