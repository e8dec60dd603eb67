"""``MooncakeConnector``: the workers find each other through the prefill worker's bootstrap server."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from backends.foreign_json import json_decoder
from backends.vllm.handover.connector import Connector, FactSource, Legs, Order, Reporter, known
from backends.vllm.handover.parameters import MAX_TEXT_CHARACTERS, HandoverError, TransferParams, labelled_port
from backends.worker import Endpoint

BOOTSTRAP_PORT = 8_998
"""vLLM's default of ``VLLM_MOONCAKE_BOOTSTRAP_PORT``."""
BOOTSTRAP_PORT_LABEL = "mooncake_bootstrap_port"
BOOTSTRAP_PATH = "/query"
MAX_QUERY_BYTES = 65_536
"""One engine has about 100 bytes."""
MAX_RANKS = 1_024


class Mooncake(Connector):
    """Both workers get their request at once, with one ``transfer_id``.

    A decode worker whose prefill worker is dead, or ended its prefill by an end-of-sequence token, answers only after
    ``VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT``.
    """

    name: ClassVar[str] = "mooncake"
    vllm_names: ClassVar[tuple[str, ...]] = ("MooncakeConnector",)
    kv_roles: ClassVar[tuple[str, str]] = ("kv_producer", "kv_consumer")
    order: ClassVar[Order] = Order.TOGETHER
    facts_from: ClassVar[FactSource] = FactSource.BOOTSTRAP
    cached_tokens_from: ClassVar[Reporter] = Reporter.PREFILL
    ends_by_length: ClassVar[bool] = True
    dropped_decode_frees: ClassVar[bool] = False

    def prefill_params(self, legs: Legs) -> TransferParams:
        return {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": legs.transfer_id}

    def decode_params(self, legs: Legs, handed: TransferParams | None) -> TransferParams:
        peer = legs.prefill
        host = f"[{peer.connector_host}]" if ":" in peer.connector_host else peer.connector_host
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_bootstrap_addr": f"http://{host}:{peer.side_port or BOOTSTRAP_PORT}",
            "remote_engine_id": known(peer.engine_id, "engine id"),
            "transfer_id": legs.transfer_id,
        }


def bootstrap_of(host: str, port: str | None) -> Endpoint:
    """Return the bootstrap server of a prefill worker; `port` is its label.

    Raises:
        HandoverError: the label is no port.
    """
    if port is None:
        return Endpoint("http", host, BOOTSTRAP_PORT)
    number = labelled_port(port)
    if number is None:
        raise HandoverError(f"the label {BOOTSTRAP_PORT_LABEL} is {port[:20]!r}, which is no port from 1 to 65535")
    return Endpoint("http", host, number)


class _Engine(msgspec.Struct):
    engine_id: str


_ENGINES = json_decoder(dict[str, _Engine])


def read_engine_ids(body: bytes) -> dict[int, str]:
    """Return the engine id of each data-parallel rank, from the answer of the bootstrap server's ``/query``.

    Raises:
        HandoverError: the answer is another document.
    """
    try:
        engines = _ENGINES.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HandoverError("the bootstrap server's answer names no engines") from None
    found = {int(rank): one.engine_id for rank, one in engines.items() if rank.isdecimal() and len(rank) < 5}
    if not found or len(found) > MAX_RANKS or any(len(one) > MAX_TEXT_CHARACTERS for one in found.values()):
        raise HandoverError("the bootstrap server's answer names no engines")
    return found
