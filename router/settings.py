"""Load the settings, with the checks of every package that owns some.

A package offers ``settings.check(config)``; `CHECKS` collects them, so that `router.config` imports no other package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from router.config.load import Loaded
from router.config.load import load as load_checked
from router.config.model import Config
from router.config.problems import Check
from router.discovery.settings import check as check_discovery
from router.gateway.settings import check as check_gateway
from router.placement.settings import check as check_policy
from router.process.settings import check as check_process
from router.replicas.settings import check as check_replicas
from router.security.settings import check as check_security
from router.tokenization.settings import check as check_prompts
from router.tracing.settings import check as check_tracing
from router.workers.settings import check as check_workers

CHECKS: tuple[Check, ...] = (
    check_process,
    check_security,
    check_workers,
    check_discovery,
    check_prompts,
    check_policy,
    check_gateway,
    check_replicas,
    check_tracing,
)


def load(argv_values: Mapping[str, Any], env: Mapping[str, str], file: Path | None) -> Config:
    """Return the effective settings.

    Raises:
        ConfigError: names every mistake found.
    """
    return load_with_places(argv_values, env, file).config


def load_with_places(
    argv_values: Mapping[str, Any], env: Mapping[str, str], file: Path | None, further: Sequence[Check] = ()
) -> Loaded:
    """Return the effective settings and the place of each value; see `router.config.load.load`. `further` are checks
    beside those of the packages.

    Raises:
        ConfigError: names every mistake found.
    """
    return load_checked(argv_values, env, file, (*CHECKS, *further))
