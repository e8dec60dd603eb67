"""The dashboards of Grafana, which ``python -m docs.build`` writes.

Each dashboard is a table of panels below. The JSON goes to deploy/grafana, from where Docker Compose mounts it. The
chart can only read files of its own, so the dashboards and deploy/prometheus/rules.yml are copied there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA_VERSION = 41
"""Of Grafana 12. Later versions migrate it."""
WIDTH, HEIGHT = 24, 8
JOB = '{job=~"$job"}'
ROUTE = '{job=~"$job", route=~"$route"}'
REQUEST = '{job=~"$job", route=~"$route", model=~"$model"}'


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: its queries by their legends, and the unit and the greatest value of its axis."""

    title: str
    text: str
    queries: dict[str, str]
    unit: str = "short"
    most: float | None = None
    stack: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Rows of panels, by their titles. `by_request`: it can be narrowed to a route or a model."""

    name: str
    title: str
    rows: dict[str, Sequence[Panel]]
    by_request: bool = False


def rate(counter: str, where: str = "") -> str:
    """Return the rate of a counter with these labels."""
    return f'rate(warmroute_{counter}{{job=~"$job"{", " if where else ""}{where}}}[$__rate_interval])'


def of_requests(counter: str, where: str = "") -> str:
    """Return the rate of a counter of the chosen routes and models."""
    return rate(counter, ", ".join(filter(None, ('route=~"$route", model=~"$model"', where))))


def quantiles(histogram: str, rated: str | None = None, *points: float) -> dict[str, str]:
    """Return queries of quantiles, of all series or of those in `rated`."""
    rated = rated or rate(f"{histogram}_bucket")
    return {f"p{q * 100:g}": f"histogram_quantile({q}, sum by (le) ({rated}))" for q in points or (0.5, 0.95, 0.99)}


def share(part: str, whole: str, by: str = "") -> str:
    """Return the sum of one rate divided by that of another."""
    return f"sum{by} ({part}) / sum{by} ({whole})"


def common(gauge: str, *labels: str) -> str:
    """Return a gauge that all gateways see alike, once for each value of `labels`."""
    by = f" by ({', '.join(labels)})" if labels else ""
    return f"max{by} (warmroute_{gauge}{JOB})"


def worker_requests(state: str) -> str:
    return f'max by (worker) (warmroute_worker_requests{{job=~"$job", state="{state}"}})'


def or_zero(query: str) -> str:
    """Return 0 before the first event of a counter, which has no series until then."""
    return f"{query} or vector(0)"


FLEET = Dashboard(
    "fleet",
    "Warmroute / Fleet",
    {
        "Workers": (
            Panel(
                "Workers by state",
                "Only ready and half_open workers get requests.",
                {"{{state}}": f"sum by (state) ({common('worker_state', 'endpoint', 'state')})"},
                stack=True,
            ),
            Panel(
                "Ready",
                "1 while the worker is ready.",
                {"{{endpoint}}": 'max by (endpoint) (warmroute_worker_state{job=~"$job", state="ready"})'},
                most=1,
            ),
            Panel(
                "Failed attempts",
                "By worker and failure point.",
                {"{{worker}} {{point}}": or_zero(f"sum by (worker, point) ({rate('attempt_failures_total')})")},
                "reqps",
            ),
        ),
        "Scaling": (
            Panel(
                "Workers needed",
                "By role. docs/how-to/operate.md explains the number.",
                {"{{role}}": common("desired_replicas", "role")},
            ),
            Panel(
                "Measures",
                "Means of each role: KV cache in use, time spent on prefills, streams in their service level.",
                {
                    "{{resource}}: {{role}}": common("role_utilisation_ratio", "role", "resource"),
                    "service level: {{role}}": f"min by (role) (warmroute_role_service_level_ratio{JOB})",
                },
                "percentunit",
                1,
            ),
            Panel(
                "Mean queue wait",
                "By role.",
                {"{{role}}": common("role_queued_prefill_seconds", "role")},
                "s",
            ),
        ),
        "Load": (
            Panel(
                "Queue wait",
                "Estimated time until the prefill of a new prompt would start.",
                {"{{worker}}": common("queued_prefill_seconds", "worker")},
                "s",
            ),
            Panel(
                "Running requests",
                "As vLLM last reported.",
                {"{{worker}}": worker_requests("running")},
            ),
            Panel("Waiting requests", "In vLLM's own queue.", {"{{worker}}": worker_requests("waiting")}),
            Panel(
                "Requests placed",
                "By worker, with retries.",
                {"{{worker}}": f"sum by (worker) ({rate('decisions_total')})"},
                "reqps",
                stack=True,
            ),
            Panel(
                "Prompt tokens placed",
                "By worker.",
                {"{{worker}}": f"sum by (worker) ({rate('prompt_tokens_total')})"},
                stack=True,
            ),
            Panel(
                "KV cache in use",
                "By requests in progress. Near 1, vLLM preempts requests.",
                {"{{worker}}": common("worker_kv_usage_ratio", "worker")},
                "percentunit",
                1,
            ),
        ),
        "Caches": (
            Panel(
                "Cached share by worker",
                "Prompt tokens that responses report as cached, of all that were placed.",
                {
                    "{{worker}}": share(
                        rate("cached_tokens_total", 'source="reported"'), rate("prompt_tokens_total"), " by (worker)"
                    )
                },
                "percentunit",
                1,
            ),
            Panel(
                "Known blocks",
                "Blocks that the gateway knows to be resident.",
                {"{{worker}}": common("index_blocks", "worker")},
            ),
            Panel(
                "Views by residency",
                "exact: the gateway knows what the worker has cached.",
                {"{{residency}}": f"sum by (residency) ({common('view_residency', 'worker', 'residency')})"},
                stack=True,
            ),
            Panel(
                "Event streams connected",
                "1 while the worker's KV events arrive.",
                {"{{worker}}": "min by (worker) (warmroute_event_link_up" + JOB + ")"},
                most=1,
            ),
            Panel(
                "Age of KV events",
                "At their arrival, by both clocks.",
                {"{{worker}}": common("event_lag_seconds", "worker")},
                "s",
            ),
            Panel(
                "Lost events",
                "Gaps in the sequence, and restarts of it.",
                {
                    "gaps": f"sum ({rate('event_gaps_total')})",
                    "restarts": "sum (" + rate("event_faults_total", 'kind="restart"') + ")",
                },
            ),
        ),
    },
)

ROUTING = Dashboard(
    "routing-quality",
    "Warmroute / Routing quality",
    {
        "Cached tokens": (
            Panel(
                "Cached share",
                "Prompt tokens that the workers reported as cached, of all prompt tokens placed.",
                {
                    "reported": share(rate("cached_tokens_total", 'source="reported"'), rate("prompt_tokens_total")),
                    "predicted": share(rate("cached_tokens_total", 'source="predicted"'), rate("prompt_tokens_total")),
                },
                "percentunit",
                1,
            ),
            Panel(
                "Right predictions",
                "Responses that reported exactly the predicted number of cached tokens.",
                {
                    "{{worker}}": share(
                        rate("cached_comparisons_total", 'outcome="equal"'),
                        rate("cached_comparisons_total"),
                        " by (worker)",
                    )
                },
                "percentunit",
                1,
            ),
            Panel(
                "Incorrect routing",
                "Responses with fewer cached tokens than predicted and than another worker was predicted to have.",
                {
                    "share": or_zero(
                        share(rate("misrouted_requests_total"), rate("cached_comparisons_total")),
                    )
                },
                "percentunit",
                1,
            ),
            Panel(
                "Why predictions differ",
                "Responses that reported another number, by reason.",
                {"{{reason}}": or_zero(f"sum by (reason) ({rate('cached_differences_total')})")},
                "reqps",
                stack=True,
            ),
        ),
        "Decisions": (
            Panel(
                "Decisions by policy",
                "By route and policy.",
                {"{{route}} {{policy}}": f"sum by (route, policy) ({rate('route_decisions_total')})"},
                "reqps",
                stack=True,
            ),
            Panel(
                "Decisions by residency",
                "How well the gateway knew the cache of the chosen worker.",
                {"{{residency}}": f"sum by (residency) ({rate('decisions_total')})"},
                "reqps",
                stack=True,
            ),
            Panel(
                "Busiest worker against the mean",
                "1: all workers get as many requests.",
                {
                    "ratio": f"max (sum by (worker) ({rate('decisions_total')})) / "
                    f"avg (sum by (worker) ({rate('decisions_total')}))"
                },
            ),
            Panel("Time to decide", "Choosing a worker and reserving its load.", quantiles("decision_seconds"), "s"),
            Panel(
                "Time held",
                "Long prompts that the policy holds for a better moment.",
                {
                    "held now": or_zero(f"sum (warmroute_held_requests{JOB})"),
                    "requests held": f"sum ({rate('hold_seconds_count')})",
                },
            ),
            Panel(
                "Bypassed",
                "Requests of which the policy failed.",
                {
                    "policy failed: {{policy}}": or_zero(f"sum by (policy) ({rate('policy_errors_total')})"),
                },
                "reqps",
            ),
        ),
        "Prompts": (
            Panel(
                "Prompt tokens",
                "By source: the memory of tokenised prefixes, or the tokenizer.",
                {"{{source}}": f"sum by (source) ({rate('identified_prompt_tokens_total')})"},
                stack=True,
            ),
            Panel(
                "Time to identify",
                "Parsing a request and finding its prompt's identity.",
                quantiles("identify_seconds"),
                "s",
            ),
            Panel("Prompt lengths", "Tokens.", quantiles("request_prompt_tokens")),
        ),
    },
)

GATEWAY = Dashboard(
    "gateway",
    "Warmroute / Gateway",
    {
        "Traffic": (
            Panel(
                "Requests",
                "By status; 499: the client left.",
                {"{{status}}": f"sum by (status) ({of_requests('requests_total')})"},
                "reqps",
                stack=True,
            ),
            Panel(
                "Requests by route and model",
                "",
                {"{{route}} {{model}}": f"sum by (route, model) ({of_requests('requests_total')})"},
                "reqps",
                stack=True,
            ),
            Panel(
                "Tokens",
                "Per second.",
                {
                    "prompt": f"sum ({of_requests('request_prompt_tokens_sum')})",
                    "output": f"sum ({of_requests('request_output_tokens_sum')})",
                },
            ),
            Panel(
                "Time to first token",
                "From the request's last byte.",
                quantiles("", of_requests("time_to_first_token_seconds_bucket")),
                "s",
            ),
            Panel(
                "Gap between tokens",
                "Between two reads of a stream.",
                quantiles("", of_requests("inter_token_latency_seconds_bucket")),
                "s",
            ),
            Panel(
                "Whole requests",
                "To the response's last byte.",
                quantiles("", of_requests("request_duration_seconds_bucket")),
                "s",
            ),
        ),
        "Errors": (
            Panel(
                "Errors",
                "The gateway's own, by code and phase.",
                {"{{code}} {{phase}}": or_zero(f"sum by (code, phase) ({rate('errors_total')})")},
                "reqps",
                stack=True,
            ),
            Panel(
                "Retries",
                "By failure point. Exhausted: the retry budget did not allow one.",
                {
                    "{{point}}": or_zero(f"sum by (point) ({rate('retries_total')})"),
                    "exhausted": or_zero(f"sum ({rate('retry_budget_exhausted_total')})"),
                },
                "reqps",
            ),
            Panel(
                "Clients that left",
                "By phase.",
                {"{{phase}}": or_zero(f"sum by (phase) ({rate('client_aborts_total')})")},
                "reqps",
            ),
        ),
        "Requests in progress": (
            Panel(
                "In progress",
                "Queued: no worker is ready. Held: the policy waits for a better moment.",
                {
                    "active": f"sum (warmroute_active_requests{JOB})",
                    "queued": f"sum (warmroute_queued_requests{JOB})",
                    "held": or_zero(f"sum (warmroute_held_requests{JOB})"),
                },
            ),
            Panel(
                "Connections",
                "Open, to clients and to workers.",
                {
                    "clients": f"sum (warmroute_client_connections{JOB})",
                    "workers": f"sum (warmroute_worker_connections{JOB})",
                },
            ),
            Panel(
                "Buffers",
                "Share of their limits. Full: requests get 503, slow readers are cut off.",
                {
                    "{{content}} {{instance}}": f"warmroute_buffered_bytes{JOB} / warmroute_buffered_limit_bytes{JOB}",
                },
                "percentunit",
                1,
            ),
        ),
        "Processes": (
            Panel("CPU", "Cores in use.", {"{{instance}}": f"rate(process_cpu_seconds_total{JOB}[$__rate_interval])"}),
            Panel(
                "Memory",
                "Resident, and the limit.",
                {
                    "{{instance}}": f"process_resident_memory_bytes{JOB}",
                    "limit": f"min (warmroute_memory_limit_bytes{JOB})",
                },
                "bytes",
            ),
            Panel("Delay of the event loop", "A stream stutters by as much.", quantiles("loop_lag_seconds"), "s"),
            Panel("Open files", "", {"{{instance}}": f"process_open_fds{JOB}"}),
            Panel(
                "Gateways",
                "By version, and the processes of each that answer.",
                {
                    "{{version}}": f"sum by (version) (warmroute_build_info{JOB})",
                    "processes {{instance}}": f"warmroute_processes{JOB}",
                },
            ),
            Panel(
                "Incidents",
                "Processes restarted, log lines dropped, slow readers cut off.",
                {
                    "restarts": f"sum ({rate('process_restarts_total')})",
                    "log lines dropped": f"sum ({rate('log_lines_dropped_total')})",
                    "slow readers": "sum (" + rate("connections_closed_total", 'reason="slow_reader"') + ")",
                },
            ),
        ),
    },
    by_request=True,
)

_MET = of_requests("requests_total", 'path!="local", status!~"5.."')
LEVELS = Dashboard(
    "service-levels",
    "Warmroute / Service levels",
    {
        "Objectives": (
            Panel(
                "Streams in their service level",
                "By route and target: `slo` in the settings of routes and models.",
                {
                    "{{route}} {{target}}": share(
                        rate("service_level_requests_total", 'route=~"$route", met="true"'),
                        rate("service_level_requests_total", 'route=~"$route"'),
                        " by (route, target)",
                    )
                },
                "percentunit",
                1,
            ),
            Panel(
                "Answered requests",
                "Without a server error, by route.",
                {"{{route}}": share(_MET, of_requests("requests_total", 'path!="local"'), " by (route)")},
                "percentunit",
                1,
            ),
            Panel(
                "Error budget spent",
                "1: as fast as an objective of 99 % allows. 10: ten times as fast.",
                {
                    "{{route}} {{target}}": "(1 - "
                    + share(
                        'rate(warmroute_service_level_requests_total{job=~"$job", met="true"}[1h])',
                        f"rate(warmroute_service_level_requests_total{JOB}[1h])",
                        " by (route, target)",
                    )
                    + ") / 0.01"
                },
            ),
        ),
        "By route": (
            Panel(
                "Time to first token, p95",
                "By route.",
                {
                    "{{route}}": "histogram_quantile(0.95, sum by (le, route) ("
                    + of_requests("time_to_first_token_seconds_bucket")
                    + "))"
                },
                "s",
            ),
            Panel(
                "Gap between tokens, p95",
                "By route.",
                {
                    "{{route}}": "histogram_quantile(0.95, sum by (le, route) ("
                    + of_requests("inter_token_latency_seconds_bucket")
                    + "))"
                },
                "s",
            ),
            Panel(
                "Whole requests, p95",
                "By route.",
                {
                    "{{route}}": "histogram_quantile(0.95, sum by (le, route) ("
                    + of_requests("request_duration_seconds_bucket")
                    + "))"
                },
                "s",
            ),
            Panel("Requests", "By route.", {"{{route}}": f"sum by (route) ({of_requests('requests_total')})"}, "reqps"),
            Panel(
                "Refused requests",
                "By routes with a limit or a queue, and by limits of tenants and keys.",
                {
                    "route {{route}}": or_zero(f"sum by (route) ({rate('route_refusals_total')})"),
                    "{{account}} {{limit}}": or_zero(f"sum by (account, limit) ({rate('limit_refusals_total')})"),
                },
                "reqps",
            ),
            Panel("Output lengths", "Tokens.", quantiles("", of_requests("request_output_tokens_bucket"))),
            Panel(
                "Cached share by route",
                "By route and model: cached prompt tokens, of those of answers that report them.",
                {
                    "{{route}} {{model}}": share(
                        of_requests("route_prompt_tokens_total", 'cached="true"'),
                        of_requests("route_prompt_tokens_total"),
                        " by (route, model)",
                    )
                },
                "percentunit",
                1,
            ),
            Panel(
                "Errors by route",
                "The gateway's own, of requests that it had read, by phase.",
                {"{{route}} {{phase}}": or_zero(f"sum by (route, phase) ({of_requests('errors_total')})")},
                "reqps",
                stack=True,
            ),
            Panel(
                "Requests by route",
                "Held by the policy. For routes with a limit or a queue: those in it, and those on workers or held.",
                {
                    "{{route}} held": or_zero(f"sum by (route) (warmroute_held_requests{REQUEST})"),
                    "{{route}} {{state}}": or_zero(f"sum by (route, state) (warmroute_route_requests{ROUTE})"),
                },
            ),
        ),
    },
    by_request=True,
)

DASHBOARDS = (FLEET, ROUTING, GATEWAY, LEVELS)


def made(dashboard: Dashboard) -> dict[str, Any]:
    """Return a dashboard as Grafana reads it."""
    return {
        "uid": f"warmroute-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["warmroute"],
        "editable": True,
        "refresh": "10s",
        "schemaVersion": SCHEMA_VERSION,
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": list(_variables(dashboard))},
        "links": [{"type": "dashboards", "tags": ["warmroute"], "title": "Warmroute", "asDropdown": True,
                   "includeVars": True, "keepTime": True}],
        "panels": list(_panels(dashboard)),
    }  # fmt: skip


def _variables(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    yield {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"}
    names = {"job": "label_values(warmroute_build_info, job)"}
    if dashboard.by_request:
        names |= {
            "route": f"label_values(warmroute_requests_total{JOB}, route)",
            "model": f"label_values(warmroute_requests_total{JOB}, model)",
        }
    for name, query in names.items():
        yield {
            "type": "query", "name": name, "label": name.title(), "datasource": DATASOURCE, "query": query,
            "refresh": 2, "multi": True, "includeAll": True, "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }  # fmt: skip


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    identifier, top = 0, 0
    for title, panels in dashboard.rows.items():
        identifier += 1
        yield {"type": "row", "id": identifier, "title": title, "collapsed": False, "panels": [],
               "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1}}  # fmt: skip
        top += 1
        for place, panel in enumerate(panels):
            identifier += 1
            x, y = place % 3 * (WIDTH // 3), top + place // 3 * HEIGHT
            yield _panel(panel, identifier, {"x": x, "y": y, "w": WIDTH // 3, "h": HEIGHT})
        top += -(-len(panels) // 3) * HEIGHT


def _panel(panel: Panel, identifier: int, place: dict[str, int]) -> dict[str, Any]:
    axis: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        axis["max"] = panel.most
    drawn = {"fillOpacity": 30 if panel.stack else 0, "showPoints": "never"}
    if panel.stack:
        drawn["stacking"] = {"mode": "normal"}
    return {
        "type": "timeseries",
        "id": identifier,
        "title": panel.title,
        "description": panel.text,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {**axis, "custom": drawn}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": DATASOURCE, "expr": query, "legendFormat": legend,
             "exemplar": query.startswith("histogram_quantile")}
            for number, (legend, query) in enumerate(panel.queries.items())
        ],
    }  # fmt: skip


def text_of(dashboard: Dashboard) -> str:
    """Return the file of a dashboard."""
    return json.dumps(made(dashboard), indent=1) + "\n"
