"""All connectors, by name."""

from __future__ import annotations

from typing import Final

from backends.vllm.handover.connector import Connector
from backends.vllm.handover.mooncake import Mooncake
from backends.vllm.handover.nixl import MoRIIOPull, NixlPull, NixlPush
from backends.vllm.handover.offloading_peer import OffloadingPeer
from backends.vllm.handover.shared_store import LMCache, SharedStore

CONNECTORS: Final[dict[str, Connector]] = {
    one.name: one
    for one in (
        NixlPull(),
        NixlPush(),
        Mooncake(),
        OffloadingPeer(),
        SharedStore(),
        LMCache(),
        MoRIIOPull(),
    )
}
