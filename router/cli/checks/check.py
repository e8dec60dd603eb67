"""``warmroute check``: check settings, reach the workers, and name vLLM flags that would improve them."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from router.cli.options import Commands, add_command, add_settings, read_usable_settings
from router.config.budgets import plan_memory
from router.config.descriptors import fit_connections, reachable_descriptors
from router.config.memory import memory_limit
from router.config.problems import ConfigError
from router.process.children.child_config import count_of

UNREACHABLE = 1
CONFIG_PROBLEM = 2

_EXAMPLES = """\
examples:
  warmroute check --worker http://gpu1:8000 --worker http://gpu2:8000
  warmroute check --config warmroute.yaml --json

exit codes: 0 the settings are valid, every worker answers, and so does Redis if it is configured; 1 one does not;
2 a setting is not valid.
Each worker gets one short prompt twice and one short stream, to see what it reports, unless --no-requests is given.
"""


def register(commands: Commands) -> None:
    parser = add_command(
        commands,
        "check",
        "check settings and workers, and name vLLM flags that would improve them",
        "Check the settings, reach every worker, and name vLLM flags that would improve it.",
        _EXAMPLES,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--no-requests", action="store_true", help="send no prompt to any worker")
    add_settings(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        loaded = read_usable_settings(arguments)
    except ConfigError as error:
        if not arguments.json:
            raise
        print(json.dumps({"problems": [asdict(problem) for problem in error.problems], "workers": []}, indent=2))
        return CONFIG_PROBLEM
    # late: `warmroute --help` must not wait for HTTP client, tokenizer and table printer
    import asyncio

    from router.cli.checks.examine import examine_all
    from router.cli.checks.examine_handover import examine_handover
    from router.cli.checks.examine_redis import examine_redis
    from router.cli.checks.examine_usage import examine_usage
    from router.cli.checks.findings import document, print_findings

    processes = count_of(loaded.config)
    plan = plan_memory(loaded.config, processes, memory_limit())
    _, warning = fit_connections(loaded.config, processes, reachable_descriptors())
    warnings = [*plan.warnings, *([warning] if warning is not None else [])]
    reports = asyncio.run(examine_all(loaded.config, requests=not arguments.no_requests))
    warnings += asyncio.run(examine_handover(loaded.config, reports, requests=not arguments.no_requests))
    warnings += asyncio.run(examine_usage(loaded.config, reports, requests=not arguments.no_requests))
    redis = asyncio.run(examine_redis(loaded.config.redis))
    places = [loaded.places.get(("workers", n, "url"), f"workers[{n}]") for n in range(len(reports))]
    if arguments.json:
        print(json.dumps(document(reports, places, plan, warnings, redis), indent=2))
    else:
        print_findings(reports, places, plan, warnings, redis)
    failed = any(report.problem for report in reports) or (redis is not None and redis.problem is not None)
    return UNREACHABLE if failed else 0
