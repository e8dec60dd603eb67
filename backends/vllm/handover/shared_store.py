"""Connectors that write blocks to a store which all workers read: no request carries parameters."""

from __future__ import annotations

from typing import ClassVar

from backends.vllm.handover.connector import Connector, Legs, Reporter
from backends.vllm.handover.parameters import TransferParams


class SharedStore(Connector):
    """The prefill worker gets the plain request with one token to generate, and then the decode worker its own.

    A shared folder (``ExampleConnector``), or the file-system tier of ``OffloadingConnector`` with one ``root_dir``.
    What a worker takes from the store counts as cached in its usage, so the prefill worker's number is the true one.
    """

    name: ClassVar[str] = "shared_store"
    vllm_names: ClassVar[tuple[str, ...]] = ("ExampleConnector", "OffloadingConnector", "MooncakeStoreConnector")
    cached_tokens_from: ClassVar[Reporter] = Reporter.PREFILL
    marks_prefill: ClassVar[bool] = False

    def prefill_params(self, legs: Legs) -> TransferParams | None:
        return None

    def decode_params(self, legs: Legs, handed: TransferParams | None) -> TransferParams | None:
        return None


class LMCache(SharedStore):
    """As other shared stores, with a server of its own. Its KV events do not report what the server holds."""

    name: ClassVar[str] = "lmcache"
    vllm_names: ClassVar[tuple[str, ...]] = ("LMCacheMPConnector", "LMCacheConnectorV1")
