"""Every operation of the admin port, in the order of its pages. Each is declared beside what it does."""

from __future__ import annotations

from router.admin.fleet import fleet_rows, health, replicas, sources, workers
from router.admin.fleet.worker_operations import operate_workers
from router.admin.observe import (
    callers,
    decisions,
    diagnosis,
    explain,
    planner,
    prefixes,
    routing_probe,
    traffic,
    what_if,
)
from router.admin.settings import desired_state, limits, log_level, policy, routes
from router.admin.settings.named_settings import NAMED_OPERATIONS

OPEN_PATHS = ("/livez", "/readyz")
"""Answered without a token."""

OPERATIONS = (
    *(health.live, health.ready, health.metrics),
    *(workers.list_workers, fleet_rows.list_fleet, workers.add_worker, workers.get_worker),
    *(workers.change_worker, workers.remove_worker, workers.drain_worker, workers.undrain_worker),
    *(sources.register_worker, sources.deregister_worker),
    operate_workers,
    *(policy.get_policy, policy.set_policy, policy.list_policies, policy.put_policy, policy.remove_policy),
    *(routes.list_routes, routes.set_routes, routes.compare_shadows),
    *NAMED_OPERATIONS,
    *(desired_state.get_desired_state, desired_state.list_revisions, desired_state.get_revision),
    *(desired_state.restore_revision, desired_state.reload),
    *(explain.explain, routing_probe.probe_routing, what_if.what_if, decisions.list_decisions),
    *(diagnosis.diagnose, prefixes.list_prefixes, traffic.show_traffic, callers.list_audit, callers.whoami),
    *(planner.get_planner, planner.make_plan),
    *(replicas.list_replicas, limits.get_limits, log_level.get_log_level, log_level.set_log_level, health.get_config),
)

OF_PROCESS = tuple(one for one in OPERATIONS if not one.changes or one is log_level.set_log_level)
"""Those of one of several processes. Its desired state comes from the supervisor."""
