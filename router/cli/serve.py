"""``warmroute serve``: run the gateway."""

from __future__ import annotations

import argparse
import logging

from router.cli.options import (
    Commands,
    add_command,
    add_settings,
    read_settings,
    read_usable_settings,
    settings_file,
)
from router.config.budgets import plan_memory
from router.config.descriptors import reserve_descriptors
from router.config.memory import memory_limit
from router.control.start import sources_of
from router.process.children.child_config import count_of
from router.process.signals import ignore_until_handled
from router.telemetry.logs import log_interpreter_messages, setup_logging

log = logging.getLogger("warmroute.process")

_EXAMPLES = """\
examples:
  warmroute serve --worker http://gpu1:8000 --worker http://gpu2:8000
  warmroute serve --config warmroute.yaml --port 9000
  WARMROUTE_WORKERS=http://gpu1:8000,http://gpu2:8000 warmroute serve --policy lpwl

A worker that is down or still loads is reported, and probes continue. --worker replaces the workers of the file. The
variable of each option is in brackets. `warmroute config --sample yaml` lists settings without an option.
"""


def register(commands: Commands) -> None:
    parser = add_command(
        commands,
        "serve",
        "run the gateway",
        "Run the gateway: a public port with vLLM's API, and an admin port for the REST API and metrics.",
        _EXAMPLES,
    )
    add_settings(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    ignore_until_handled()
    config = read_usable_settings(arguments).config
    sources = sources_of(config, lambda: read_settings(arguments).config, settings_file(arguments))
    setup_logging(config.log_level, config.log_format)
    log_interpreter_messages()
    config, warning = reserve_descriptors(config, count_of(config))
    if warning is not None:
        log.warning(warning)
    plan = plan_memory(config, count_of(config), memory_limit())
    log.info("memory budgets", extra=plan.to_builtins())
    for warning in plan.warnings:
        log.warning(warning)
    # imported late: the help of other commands must not wait for the data plane
    if plan.processes > 1:
        from router.process.children.supervisor import run as run_processes

        return run_processes(plan.config, plan.processes, "router.cli.child", sources)
    from router.lifecycle import run as run_gateway

    return run_gateway(plan.config, sources)
