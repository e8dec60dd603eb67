"""The policy that the settings choose."""

from __future__ import annotations

from policies.spec import PolicySpec
from router.config.model import PolicyConfig


def spec_of(policy: PolicyConfig) -> PolicySpec:
    return PolicySpec(policy.rule, policy.params, policy.hold, policy.lanes)
