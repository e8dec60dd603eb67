"""``warmroute sidecar``: run a gateway beside one vLLM worker."""

from __future__ import annotations

import argparse

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
from router.config.model import Config
from router.control.start import sources_of
from router.process.signals import ignore_until_handled
from router.telemetry.logs import log_interpreter_messages, setup_logging

_EXAMPLES = """\
examples:
  warmroute sidecar                                   beside a worker at http://127.0.0.1:8000, public port 8080
  warmroute sidecar -- vllm serve Qwen/Qwen3-8B --host 127.0.0.1
  warmroute sidecar --worker http://127.0.0.1:9000 --port 8080 --set timeouts.drain_s=600

With a command after --, the sidecar starts the worker, stops it after the running requests, and ends with its exit
code. Settings are those of `warmroute serve`, and `sidecar` in the file.
"""


def register(commands: Commands) -> None:
    parser = add_command(
        commands,
        "sidecar",
        "run a gateway beside one vLLM worker",
        "Run beside one vLLM worker: forward its traffic, see whether its engine hangs, and drain it before it stops.",
        _EXAMPLES,
    )
    add_settings(parser)
    parser.add_argument(
        "child", nargs="*", metavar="-- COMMAND", help="start the worker with this command, as a child process"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    # late: the help of other commands must not wait for the data plane
    from router.sidecar.defaults import sidecar_config

    ignore_until_handled()

    def read() -> Config:
        return sidecar_config(read_settings(arguments))

    loaded = read_usable_settings(arguments)
    config = sidecar_config(loaded)
    sources = sources_of(config, read, settings_file(arguments))
    setup_logging(config.log_level, config.log_format)
    log_interpreter_messages()
    config, _ = reserve_descriptors(config, 1)
    plan = plan_memory(config, 1, memory_limit())
    from router.sidecar.system import run as run_sidecar

    return run_sidecar(plan.config, sources, arguments.child)
