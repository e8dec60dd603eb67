"""What chooses a worker: a rule, its parameters, and the wrappers around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

WRAPPERS = ("hold", "lanes")

Wrapping: TypeAlias = bool | Mapping[str, Any] | None
"""On, off, or on with these parameters. None: as the rule declares by `wrapped`."""


class PolicySpec(msgspec.Struct, frozen=True):
    """A policy as the configuration, the admin API and the lab name it. `policies.registry.build_policy` builds it.

    `hold` keeps long prompts in the gateway (`policies.wrappers.hold`), and `lanes` keeps long prefills apart
    (`policies.wrappers.prefill_lanes`).
    """

    rule: str = "marginal_cost"
    params: Mapping[str, Any] = msgspec.field(default_factory=dict)
    hold: Wrapping = None
    lanes: Wrapping = None
