"""``warmroute picker``: run the endpoint picker of an InferencePool, or of any Envoy."""

from __future__ import annotations

import argparse
import importlib.util
import logging
from collections.abc import Sequence

from router.cli.options import (
    Commands,
    add_command,
    add_settings,
    read_settings,
    read_usable_settings,
    settings_file,
)
from router.cli.translate import add_translate, print_translation
from router.config.budgets import plan_memory
from router.config.descriptors import reserve_descriptors
from router.config.memory import memory_limit
from router.config.model import Config
from router.control.start import sources_of
from router.picker.flags import NOT_OFFERED, PLUGINS, add_flags, ignored, settings_of
from router.process.signals import ignore_until_handled
from router.telemetry.logs import log_interpreter_messages, say, setup_logging

log = logging.getLogger("warmroute.picker")

_EXAMPLES = """\
examples:
  warmroute picker --worker http://10.0.0.5:8000 --worker http://10.0.0.6:8000 --secure-serving=false
  warmroute picker --pool-name llama --pool-namespace models --grpc-port 9002 --grpc-health-port 9003
  warmroute picker --config warmroute.yaml --set picker.learn=headers

It chooses workers for Envoy, Istio, agentgateway and every other gateway that speaks ext_proc. Settings are those of
`warmroute serve`, and `picker` in the file. Needs pip install 'warmroute[picker]'.
"""
_NEEDS = ("grpc", "google.protobuf", "cryptography")
_NOT_READ = "another picker's plugins are not read; `warmroute picker --translate FILE` prints settings for them"
_MISSING = "warmroute picker: install what it needs with: pip install 'warmroute[picker]'"


def register(commands: Commands) -> None:
    parser = add_command(
        commands,
        "picker",
        "run the endpoint picker for Envoy and Kubernetes gateways",
        "Run an endpoint picker of the Gateway API Inference Extension: a gateway asks it which worker gets a request.",
        _EXAMPLES,
    )
    add_settings(parser, NOT_OFFERED)
    add_flags(parser)
    add_translate(parser)
    parser.set_defaults(run=run)


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _report(unused: Sequence[str]) -> None:
    """Log the flags that change nothing."""
    if plugins := PLUGINS.intersection(unused):
        log.warning(_NOT_READ, extra={"flags": " ".join(sorted(plugins))})
    if others := [flag for flag in unused if flag not in plugins]:
        log.info("flags without effect here", extra={"flags": " ".join(others)})


def run(arguments: argparse.Namespace) -> int:
    if arguments.translate is not None:
        return print_translation(arguments.translate)
    if not all(map(_installed, _NEEDS)):
        say(_MISSING)
        return 1
    # late: other commands need no gRPC
    from router.lifecycle import run as run_gateway
    from router.picker.server import PickerServer
    from router.picker.settings import picker_config, without_effect

    ignore_until_handled()
    arguments.further_settings = settings_of(arguments)

    def read() -> Config:
        return picker_config(read_settings(arguments))

    loaded = read_usable_settings(arguments)
    config = picker_config(loaded)
    sources = sources_of(config, read, settings_file(arguments))
    setup_logging(config.log_level, config.log_format)
    log_interpreter_messages()
    _report(ignored(arguments))
    if unused := without_effect(loaded):
        log.warning("settings without effect in a picker", extra={"settings": " ".join(unused)})
    config, _ = reserve_descriptors(config, 1)
    plan = plan_memory(config, 1, memory_limit())
    for warning in plan.warnings:
        log.warning(warning)
    return run_gateway(plan.config, sources, PickerServer, "picker")
