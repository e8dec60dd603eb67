"""The pages of docs/reference that are made from the product's tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from inspect import cleandoc
from typing import Any

from docs.build import request_flow, surface
from docs.build.admin_api import reference_page as admin_api_page
from docs.build.client_pages import errors_page, headers_page
from docs.build.limits import FIXED_HEADS, HEADS, fixed_rows, setting_rows
from docs.build.picker_cases import page as picker_page
from docs.build.tables import MADE, table
from docs.build.worker_reads import HEADS as WORKER_HEADS
from docs.build.worker_reads import worker_rows
from docs.build.workloads import page as workloads_page
from policies.registry import BUILT_IN, describe, describe_wrappers
from router.config.budgets import BYTE_BUDGETS, RSS_PER_BYTE, SHARE, plan_memory
from router.config.memory import MemoryLimit
from router.config.model import Config
from router.gateway.flow.request_log import MODELS_NAMED
from router.metrics.catalogue import CATALOGUE, MetricSpec
from router.requests.routes import FORBIDDEN_PATHS, FORBIDDEN_PREFIXES, ROUTES, Route


def policies_page() -> str:
    lines = [
        "# Policies",
        "",
        MADE,
        "A policy is a rule, with or without `hold` and `lanes` around it. "
        "Choose the rule with `--policy RULE`, `policy.rule` in the file, or `PUT /admin/v1/policy`; "
        "your own: [write a policy](../how-to/write-a-policy.md).",
        "",
    ]
    rows = ((f"[`{name}`](policies/{name}.md)", described["summary"]) for name, described in _policies())
    return "\n".join([*lines, *table(("rule", "chooses"), rows), *_wrappers()]) + "\n"


def _wrappers() -> Iterable[str]:
    on = " and ".join(f"`{name}`" for name, described in _policies() if described["hold"])
    for name, described in describe_wrappers().items():
        yield from ("", f"## `{name}`", "", described["summary"], "")
        yield (
            f"`--{name}` and `--no-{name}` switch it on and off; the default is on around {on}, and off around other "
            f"rules. In the file, `policy.{name}` is true, false, or a mapping with parameters, each also as "
            f"`--set policy.{name}.KEY=VALUE`:"
        )
        yield from ("", *table(_PARAMETER_HEADS, _parameters(described["params"])))


_PARAMETER_HEADS = ("parameter", "type", "default", "meaning")


def _parameters(params: dict[str, Any]) -> Iterable[tuple[str, ...]]:
    for key, about in params.items():
        default = "none" if about["default"] is None else f"`{json.dumps(about['default'])}`"
        yield f"`{key}`", about["type"], default, about["meaning"]


def _policies() -> Iterable[tuple[str, dict[str, Any]]]:
    for name in BUILT_IN:
        described = describe(name)
        yield name, {**described, "summary": described["summary"].replace("``", "`").replace("|", r"\|")}


def policy_page(name: str) -> str:
    """Return the page of one policy: its description, parameters and terms."""
    text = cleandoc(BUILT_IN[name].__doc__ or "").replace("``", "`")
    use = f"warmroute serve --policy {name} --worker http://10.0.0.5:8000 --worker http://10.0.0.6:8000"
    described = describe(name)
    params, terms = described["params"], described["terms"]
    lines = [f"# `{name}`", "", MADE, text, "", "```sh", use, "```", "", "[All policies](../policies.md)"]
    if params:
        given = f"`--policy-param {next(iter(params))}=...`, once per parameter, or `policy.params` in the file."
        lines[-2:-2] = ["", *table(_PARAMETER_HEADS, _parameters(params)), "", given]
    if terms:
        meanings = ((f"`{key}`", meaning) for key, meaning in terms.items())
        lines[-2:-2] = [
            "",
            "Terms in `warmroute explain` and the decision log:",
            "",
            *table(("term", "meaning"), meanings),
        ]
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    lines = [
        "# Metrics",
        "",
        MADE,
        "`GET /metrics` on the admin port, Prometheus text format. With `--processes` a metric is the `sum` over "
        "all processes, or the largest (`max`) or least (`min`) of their values. A scraper that accepts OpenMetrics "
        "gets it: with exemplars, which name the trace of a request with a `traceparent` that is sampled.",
        "",
        "`route` is a route of the settings. `model` is a model that a worker lists; other names, and models after the "
        f"first {MODELS_NAMED}, count as `other`. Both are empty for requests that have none. The buckets of times to "
        "first token, between tokens and of whole requests are those of vLLM.",
        "",
        "## Stability",
        "",
        "A `stable` metric keeps its name, labels, unit and meaning within a major version; it may get further label "
        "values. To replace one, a release exports both and marks the old one as deprecated, here and in the "
        "changelog. A later minor release, after at least 90 days, removes it. An `experimental` metric may change in "
        "any release.",
        "",
        "## All metrics",
        "",
    ]
    heads = ("metric", "type", "labels", "processes", "stability", "meaning")
    return "\n".join([*lines, *table(heads, map(_metric, CATALOGUE))]) + "\n"


def _metric(spec: MetricSpec) -> tuple[str, ...]:
    labels = ", ".join(f"`{label}`" for label in spec.labels)
    return f"`{spec.exported_name}`", spec.kind.value, labels, spec.merge.value, spec.stability.value, spec.help


def paths_page() -> str:
    """Return the page of forwarded paths, and of paths that are never forwarded."""
    lines = [
        "# Paths of the public port",
        "",
        MADE,
        "Answered by the gateway: `GET /v1/models` (the union over the fleet, and aliases), `GET /v1/models/{id}`, "
        "`/health`, `/livez`, `/readyz`, `/version`. Forwarded (`extra_paths` adds more); any other path is a 404 with "
        "code `path_not_found`:",
        "",
        *table(("path", "methods", "model named in", "placed by", "takes `cache_salt`"), map(_route, ROUTES)),
        "",
        "Never forwarded, whatever the configuration says, because they change a worker: "
        + ", ".join(f"`{path}`" for path in sorted((*FORBIDDEN_PATHS, *(f"{p}*" for p in FORBIDDEN_PREFIXES))))
        + ".",
    ]
    return "\n".join(lines) + "\n"


def _route(route: Route) -> tuple[str, ...]:
    placed = "prefix" if route.by_prefix else "the worker that made it" if route.pinned else "load"
    if not route.prefills and not route.pinned:
        placed += "; nothing is prefilled"
    return f"`{route.pattern}`", ", ".join(route.methods), route.model.value, placed, "yes" if route.salted else "no"


def limits_page() -> str:
    lines = [
        "# Limits",
        "",
        MADE,
        "Unless the table says otherwise, a client beyond a limit gets an error with the status and code named here. "
        "The error has OpenAI's shape, and Anthropic's under `/v1/messages`. 0 means no limit. Settings in seconds "
        "also take `250ms`, `30s`, `5m` or `1h`, and settings in bytes `512KiB`, `64MiB` or `1GiB`.",
        "",
        "## Settings",
        "",
        *table(HEADS, setting_rows()),
        "",
        "## Fixed limits",
        "",
        *table(FIXED_HEADS, fixed_rows()),
        "",
        "## What is read of a worker",
        "",
        "A worker may be broken or hostile. No answer of one holds the event loop for more than some milliseconds, "
        "except a message of KV events: applying one of the largest size takes a few tenths of a second.",
        "",
        *table(WORKER_HEADS, worker_rows()),
        "",
        *_memory(),
    ]
    return "\n".join(lines) + "\n"


def _memory() -> list[str]:
    """Return the section on byte budgets and the memory limit."""
    together, one_gib = sum(budget.most_bytes for budget in BYTE_BUDGETS), MemoryLimit(1 << 30, "")
    heads = ("budget", "most", f"with a limit of {one_gib.size_bytes:,} bytes", "with 4 processes under it")
    plans = [plan_memory(Config(), processes, one_gib).budgets for processes in (1, 4)]
    rows = (
        (
            f"`{budget.path}`",
            f"{budget.most_bytes:,}",
            f"{plans[0][budget.path]:,}",
            f"{plans[1][budget.path]:,}" + (" each" if budget.per_process else ""),
        )
        for budget in BYTE_BUDGETS
    )
    return [
        "## Memory",
        "",
        "A byte budget that is `auto` follows the memory limit of the process. This is the lowest limit of its control "
        "group and of the groups above it (cgroup v2 `memory.max`, cgroup v1 `memory.limit_in_bytes`). If no group has "
        "a limit below the machine's memory, it is half of that memory.",
        "",
        f"Each byte of a budget may cost {RSS_PER_BYTE} bytes of resident memory, and all budgets together have one "
        f"part in {SHARE} of the limit for that: together they are at most a sixth of the limit. With "
        f"{together * SHARE * RSS_PER_BYTE:,} bytes or more each budget has its most. With less each has the same "
        "part of its most. A budget that is set does not change the others. If all of them together are then more "
        "than a sixth of the limit, `warmroute check` and the start of `warmroute serve` warn.",
        "",
        *table(heads, rows),
        "",
        "With `processes` above 1, all processes share the budgets under `limits`, and each process has its own "
        "budgets under `residency`. No body may then be larger than one process's share of "
        "`limits.max_buffered_body_bytes`, unless that is set: then each process takes one body of "
        "`limits.max_body_bytes`, even where its share is smaller.",
        "",
        "`warmroute check` prints the limit, where it comes from, and each budget; `warmroute serve` logs them when it "
        "starts. `warmroute config` and `GET /admin/v1/config` show the numbers in effect. On `/metrics` each budget "
        "has a gauge of its limit beside the gauge of its use.",
    ]


def request_flow_page() -> str:
    """The states of a forwarded request, and every transition."""
    lines = [
        "# A request's flow",
        "",
        MADE,
        "A forwarded request is a state machine without input or output of its own (`router/gateway/flow`). Events go "
        "in, effects come out, and one table says which: `flow.Flow` follows it, and `tests/properties` reaches every "
        "row of it. The driver (`driver.RequestDriver`) has each carried out by its step. A request may have several "
        "attempts at a time. It follows a plan of one or more legs, as a prefill worker and then a decode worker; only "
        "the last leg's answer goes to the client. A plan of two legs is a KV handover. One attempt runs at a time. "
        "With NIXL push and Mooncake the plan is the decode alone, and the prefill runs beside it "
        "(`concurrent_prefill.ConcurrentPrefill`).",
        "",
        *request_flow.figure(),
        "",
        "`STOPPED` and `CLIENT_GONE` lead from every state to `OVER`; the figure leaves them out.",
        "",
        "## States",
        "",
        *table(request_flow.STATE_HEADS, request_flow.states()),
        "",
        "## Transitions",
        "",
        "The first row whose condition holds is taken. An event without a row in the current state changes nothing; "
        "neither does an event of an attempt that the request has dropped.",
        "",
        *table(request_flow.ROW_HEADS, request_flow.transitions()),
        "",
        "## Events",
        "",
        *table(request_flow.EVENT_HEADS, request_flow.events()),
        "",
        "## Effects",
        "",
        *table(request_flow.EFFECT_HEADS, request_flow.effects()),
    ]
    return "\n".join(lines) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "policies.md": policies_page,
    "admin-api.md": admin_api_page,
    "metrics.md": metrics_page,
    "paths.md": paths_page,
    "request-headers.md": headers_page,
    "errors.md": errors_page,
    "limits.md": limits_page,
    "request-flow.md": request_flow_page,
    "workloads.md": workloads_page,
    "picker-conformance.md": picker_page,
    "surface.md": surface.page,
    **{f"policies/{name}.md": partial(policy_page, name) for name in BUILT_IN},
}
