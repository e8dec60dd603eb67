"""LMCache: a shared store with a server of its own."""

from __future__ import annotations

from typing import ClassVar

from backends.vllm.handover.shared_store import SharedStore


class LMCache(SharedStore):
    """As other shared stores. Its KV events do not report what the server holds."""

    name: ClassVar[str] = "lmcache"
    vllm_names: ClassVar[tuple[str, ...]] = ("LMCacheMPConnector", "LMCacheConnectorV1")
