"""Which workers may be part of a KV handover, as their operator states it by role and labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from router.placement.fleet.endpoints import DECODE, MIXED, PREFILL

CONNECTOR: Final = "kv_connector"
"""The label with the worker's KV connector, as `handover.connector` names it. Without it, a worker of the role prefill
or decode has the configured one, and any other worker has none."""
NO_CONNECTOR: Final = "none"
"""The label's value for a worker that has none."""
FORMAT: Final = "kv_format"
"""The label with whatever must be equal on two workers beyond what vLLM reports."""

SIDECAR: Final = "kv_sidecar"
"""The label of a worker behind a sidecar that runs the handover itself, once a header names the prefill worker."""
LLM_D: Final = "llm-d"
"""The label's only value: llm-d's sidecar, with its header x-prefiller-host-port."""

ROLES: Final = (PREFILL, DECODE)
"""The roles that say which end of a handover a worker is."""

Labels = Mapping[str, str]


def connects(role: str, labels: Labels, connector: str | None) -> bool:
    """Return whether a worker has `connector`, the fleet's. None: the fleet has none."""
    assumed = connector if role in ROLES else None
    return connector is not None and labels.get(CONNECTOR, assumed) == connector


def prefills(role: str, labels: Labels, connector: str | None) -> bool:
    """Return whether a worker may compute prompts for others. One that is not of either role may do both."""
    return role != DECODE and connects(role, labels, connector)


def receives(role: str, labels: Labels, connector: str | None) -> bool:
    return role != PREFILL and connects(role, labels, connector)


def counts_as(role: str, labels: Labels, connector: str | None) -> str | None:
    """Return the role that a worker fills in a split of the fleet; None if it gets no request.

    A worker that may be either end counts as a decode worker: it receives, and takes whole requests. One that is
    neither end takes whole requests alone, as a mixed one, unless its role is prefill.
    """
    if receives(role, labels, connector):
        return DECODE
    if prefills(role, labels, connector):
        return PREFILL
    return None if connector is not None and role == PREFILL else MIXED
