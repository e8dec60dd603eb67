"""Run a sidecar until a signal or the end of its worker's process."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import uvloop

from router.config.model import Config
from router.control.start import Sources
from router.lifecycle import Lifecycle
from router.replicas.connection import MissingRedisError
from router.security.file_problem import UnusableFileError
from router.security.startup_warnings import warnings
from router.sidecar.registries import registries
from router.sidecar.system import SidecarProcess
from router.telemetry.logs import say

log = logging.getLogger("warmroute.sidecar")


async def serve(config: Config, sources: Sources | None, command: Sequence[str]) -> int:
    """Run a sidecar, and `command` as its child if there is one; return the exit code."""
    for warning in warnings(config):
        log.warning(warning)
    try:
        found = registries(config)
    except (MissingRedisError, UnusableFileError) as error:
        say(f"warmroute sidecar: cannot register: {error}")
        return 1
    system = SidecarProcess(config, sources, found, command, on_end=lambda: lifecycle.end())
    lifecycle = Lifecycle(system, command="sidecar")
    return await lifecycle.run() or system.exit_code


def run(config: Config, sources: Sources | None, command: Sequence[str]) -> int:
    """Run a sidecar in this process; return its exit code."""
    try:
        return uvloop.run(serve(config, sources, command))
    except KeyboardInterrupt:
        return 130
