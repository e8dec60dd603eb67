"""docs/reference/surface.md: who uses each setting, metric, command and operation. What has no user goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from docs.build.size import commands, settings
from docs.build.tables import MADE, table
from router.admin.table import OPERATIONS
from router.cli.main import build_parser
from router.metrics.catalogue import CATALOGUE

USERS: Mapping[str, Mapping[tuple[str, str], str]] = {
    "Settings": {
        (
            "operator",
            "names the workers",
        ): "Worker.* KvEvents.* DnsSource.* KubernetesSource.* DiscoverySource.* Discovery.* "
        "Config.workers Config.discovery",
        ("operator", "names the models"): "Model.* Config.models Config.model_dir Config.tokenizer "
        "Config.trust_request_chat_template Residency.self_test Residency.kv_events Residency.relearn Config.residency",
        ("operator", "chooses how requests are placed"): "Policy.* RouteMatch.* Route.* Slo.* "
        "Config.policy Config.policies Config.routes Handover.* Config.handover Config.observe_usage Class.* "
        "Config.classes Config.admission",
        ("operator", "bounds memory, connections and requests"): "RateLimits.* Limits.* Config.limits "
        "Residency.memo_bytes Residency.approximate_bytes Config.processes Config.decisions_kept",
        ("operator", "sets how long to wait, and what to do with sick workers"): "Timeouts.* Config.timeouts Health.* "
        "Config.health Retries.* Config.retries",
        ("operator", "lets the right callers in"): "Auth.* Config.auth Tenant.* Config.tenants Tls.* Config.tls "
        "WorkerTls.* Config.worker_tls Config.admin_tls Config.admin_token Config.admin_token_file Config.admin_tokens "
        "Config.admin_tokens_file Config.admin_metrics_open Config.admin_hosts Config.trusted_proxies "
        "Config.worker_operations",
        ("operator", "starts, replaces and deploys gateways"): "Config.host Config.port Config.uds Config.takeover "
        "Config.admin_host Config.admin_port Config.state_dir Config.watch Redis.* Config.redis Sidecar.* "
        "Config.sidecar",
        ("operator", "puts the endpoint picker behind a gateway"): "Picker.* PickerPool.* PickerRewrite.* "
        "Config.picker",
        ("operator", "finds out what happened"): "DecisionLog.* Config.decision_log Diagnosis.* Config.diagnosis "
        "Tracing.* Config.tracing Config.access_log Config.log_level Config.log_format",
        ("client", "reads what became of a request, or sends it from a browser"): "Headers.* Config.headers "
        "Config.cors_origins Config.extra_paths",
    },
    "Metrics": {
        ("operator", "dashboard Gateway"): "requests request_duration_seconds time_to_first_token_seconds "
        "inter_token_latency_seconds request_prompt_tokens request_output_tokens errors retries client_aborts "
        "client_connections connections_closed worker_connections buffered_bytes buffered_limit_bytes active_requests "
        "queued_requests held_requests loop_lag_seconds memory_limit_bytes processes process_restarts "
        "log_lines_dropped build_info retry_budget_exhausted",
        ("operator", "dashboard Routing quality"): "identify_seconds hold_seconds decision_seconds decisions "
        "route_decisions identified_prompt_tokens policy_errors prompt_tokens cached_tokens cached_comparisons "
        "misrouted_requests cached_differences",
        ("operator", "dashboard Fleet"): "worker_state queued_prefill_seconds worker_requests worker_kv_usage_ratio "
        "attempt_failures desired_replicas role_utilisation_ratio role_queued_prefill_seconds role_service_level_ratio "
        "view_residency index_blocks event_link_up event_lag_seconds event_gaps event_faults",
        ("operator", "dashboard Service levels"): "route_prompt_tokens route_requests route_refusals "
        "service_level_requests limit_refusals",
        ("operator", "an alert and its finding"): "reloads models decision_log_lost_windows ready_workers "
        "model_ready_workers event_replays workers_kept state_problems discovery_up replica_alone replicas_apart "
        "limit_admitted_requests",
        ("operator", "a how-to"): "handovers pulls handover_seconds worker_deaths fallbacks redials requests_by_key "
        "migrations migration_gap_seconds migration_requests class_preemptions class_shadow_requests "
        "rewrites tenant_use tenant_refusals limit_remaining limit_used_tokens kv_transfer_tokens_per_second "
        "late_probes traces replica_faults sidecar_registered",
        ("operator", "`top` and the console, by class"): "class_waiting_requests class_waiting_seconds class_refusals "
        "class_tenant_waiting_requests class_service_level_requests",
        ("operator", "how long requests waited without a worker"): "queue_seconds",
        ("operator", "what gateways ask the endpoint picker, and what they get"): "picks picker_streams",
        ("test", "soaks and faults look for leaks and for what workers were asked"): "tasks probes self_tests",
    },
    "Commands": {
        ("operator", "runs the product"): "serve sidecar picker check config keys/new",
        ("operator", "watches and explains"): "diagnose top explain replay replicas",
        ("operator", "changes workers"): "workers/*",
        ("operator", "changes settings in a running gateway"): "policy/* routes/* models/* "
        "tenants/* limits/* revisions/* reload",
        ("operator", "measures and sizes a fleet"): "load calibrate",
        ("developer", "tries the product without a GPU"): "worker demo fleet",
        ("developer", "tests an endpoint picker"): "picker-conformance",
        ("operator", "sizes a fleet before it is bought, or that runs"): "plan planner/*",
    },
    "Admin operations": {
        ("operator", "probes, scrapes"): "live ready metrics",
        ("operator", "workers, by command and console"): "list_workers list_fleet add_worker get_worker change_worker "
        "remove_worker drain_worker undrain_worker operate_workers",
        ("operator", "sidecars of workers register them"): "register_worker deregister_worker",
        ("operator", "policies, routes and settings by name"): "get_policy set_policy list_policies put_policy "
        "remove_policy list_routes set_routes compare_shadows list_models change_model remove_model list_tenants "
        "change_tenant remove_tenant list_tenant_limits set_tenant_limits change_tenant_limit remove_tenant_limit "
        "list_key_limits set_key_limits change_key_limit remove_key_limit get_limits",
        ("operator", "history of changes"): "get_desired_state list_revisions get_revision restore_revision reload "
        "list_audit",
        ("operator", "what happens, and why"): "explain what_if list_decisions diagnose list_prefixes show_traffic "
        "list_replicas whoami get_config get_log_level set_log_level",
        ("operator", "sizes the fleet, by command and console"): "get_planner make_plan",
        ("program", "routers of models choose by warm prefix"): "probe_routing",
    },
}
"""By kind, user and use: names. ``A.*`` stands for all that begin with ``A.`` and are in no group by their names."""


def names() -> Mapping[str, list[str]]:
    """Return all that there is, by kind."""
    found = (command.removeprefix("warmroute ").replace(" ", "/") for command in commands(build_parser()))
    return {
        "Settings": settings(),
        "Metrics": [spec.name.removeprefix("warmroute_") for spec in CATALOGUE],
        "Commands": list(found),
        "Admin operations": [one.name for one in OPERATIONS],
    }


def shown() -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield kind, user, use and names of each group. A name that is written out is not in the group of its ``*``."""
    for kind, present in names().items():
        written = {name for text in USERS[kind].values() for name in text.split()}
        for (user, use), text in USERS[kind].items():
            stems = tuple(name.removesuffix("*") for name in text.split() if name.endswith("*"))
            yield (
                kind,
                user,
                use,
                [name for name in present if name in text.split() or (name not in written and name.startswith(stems))],
            )


def problems() -> list[str]:
    """Return what has no user or two, and users of what is not there."""
    found = []
    for kind, present in names().items():
        used = Counter(name for of, *_, group in shown() if of == kind for name in group)
        found += [f"{kind}: {name} has {used[name]} users" for name in present if used[name] != 1]
        listed = {name for text in USERS[kind].values() for name in text.split() if not name.endswith("*")}
        found += [f"{kind}: there is no {name}" for name in sorted(listed - set(present))]
    return found


def page() -> str:
    lines = [
        "# Who uses what",
        "",
        MADE,
        "Each setting, metric, command and operation of the admin API has a user; a test fails for one that has none.",
    ]
    for kind, present in names().items():
        rows = (
            (user, use, ", ".join(f"`{name.replace('/', ' ')}`" for name in group))
            for of, user, use, group in shown()
            if of == kind
        )
        lines += ["", f"## {kind}: {len(present)}", "", *table(("user", "use", "names"), rows)]
    return "\n".join(lines) + "\n"
