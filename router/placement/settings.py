"""Check the settings of the policy."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from policies.registry import PolicyError, build_policy
from router.config.findings import Finding
from router.config.model import Config


def check(config: Config) -> Iterator[Finding]:
    """Find an unknown policy name and wrong parameters, by building the policy."""
    try:
        build_policy(config.policy.name, config.policy.params, Random(config.policy.seed))
    except PolicyError as error:
        place = ("policy", "name") if error.parameter is None else ("policy", "params", error.parameter)
        yield place, str(error).removesuffix(f"; {error.fix}"), error.fix
