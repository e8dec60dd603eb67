"""Every operation of the admin port. A worker's id is ``host:port``."""

from __future__ import annotations

from http import HTTPStatus

from router.admin import audit, decisions, documents, health, limits, policy, reload, routes, workers
from router.admin.changes import DRY_RUN
from router.admin.operations import Operation
from router.admin.paging import CURSOR
from router.admin.parameters import Query
from router.admin.watch import WATCH
from router.config.model import Config, RouteConfig
from router.security.token import Role

OPEN_PATHS = ("/livez", "/readyz")
"""Answered without a token."""
_UNKNOWN = {404: "no such worker"}
_WRONG_QUERY = {422: "wait_s is not a whole number from 1 to 3600"}
_WRONG_PARAMETER = {422: "a query parameter has a value that is not valid"}
_INVALID = {422: "a field is missing, unknown, or has a value that is not valid"}

OPERATIONS = (
    Operation(
        "GET",
        "/livez",
        "live",
        "Is the process alive?",
        health.live,
        gives=documents.Live,
    ),
    Operation(
        "GET",
        "/readyz",
        "ready",
        "Can requests be served?",
        health.ready,
        gives=documents.Ready,
        problems={503: "no worker is ready, or the gateway is starting or stopping; detail says which"},
    ),
    Operation(
        "GET",
        "/metrics",
        "metrics",
        "All metrics, in Prometheus text format.",
        health.metrics,
        media_type="text/plain",
    ),
    Operation(
        "GET",
        "/admin/v1/workers",
        "list_workers",
        "All workers: state, models, view of the cache, load, learned speed, predicted against reported cached tokens.",
        workers.list_all,
        gives=documents.Workers,
        query=(Query("limit", 10_000, 10_000, "most workers to return"), CURSOR, WATCH),
        watch=workers.WATCHED,
        problems={410: "the worker that the cursor names has left the fleet", **_WRONG_PARAMETER},
    ),
    Operation(
        "POST",
        "/admin/v1/workers",
        "add_worker",
        "Add a worker. It takes requests after its first successful probe.",
        workers.add,
        role=Role.ADMIN,
        takes=documents.NewWorker,
        gives=documents.Worker,
        status=HTTPStatus.CREATED,
        problems={409: "the worker is in the fleet already", **_INVALID},
        query=(DRY_RUN,),
        changes_state=True,
    ),
    Operation(
        "GET",
        "/admin/v1/workers/{id}",
        "get_worker",
        "One worker.",
        workers.show,
        gives=documents.Worker,
        problems=_UNKNOWN,
    ),
    Operation(
        "DELETE",
        "/admin/v1/workers/{id}",
        "remove_worker",
        "Remove a worker at once. Started answers run to their end, other requests move. To wait, drain it first.",
        workers.remove,
        role=Role.ADMIN,
        status=HTTPStatus.NO_CONTENT,
        problems=_UNKNOWN,
        query=(DRY_RUN,),
        changes_state=True,
    ),
    Operation(
        "POST",
        "/admin/v1/workers/{id}/drain",
        "drain_worker",
        "Send a worker no new requests; with wait_s, answer once no request is there. Idempotent.",
        workers.drain,
        role=Role.OPERATE,
        gives=documents.Worker,
        query=(
            Query("wait_s", 0, 3_600, "seconds to wait until no request is at the worker; default: do not wait"),
            DRY_RUN,
        ),
        problems={409: "requests are still there after wait_s; the worker stays drained", **_UNKNOWN, **_WRONG_QUERY},
        changes_state=True,
    ),
    Operation(
        "POST",
        "/admin/v1/workers/{id}/undrain",
        "undrain_worker",
        "Send a drained worker requests again; with wait_s, answer once it takes them. Idempotent.",
        workers.undrain,
        role=Role.OPERATE,
        gives=documents.Worker,
        query=(Query("wait_s", 0, 3_600, "seconds to wait until the worker is ready; default: do not wait"), DRY_RUN),
        problems={409: "it is not ready after wait_s; it will take requests once it is", **_UNKNOWN, **_WRONG_QUERY},
        changes_state=True,
    ),
    Operation(
        "GET",
        "/admin/v1/policy",
        "get_policy",
        "The policy in use, and all policies that can be chosen.",
        policy.show,
        gives=documents.PolicyDocument,
    ),
    Operation(
        "PUT",
        "/admin/v1/policy",
        "set_policy",
        "Choose another policy, from the next request on.",
        policy.change,
        role=Role.ADMIN,
        takes=documents.NewPolicy,
        gives=documents.PolicyDocument,
        problems=_INVALID,
        query=(DRY_RUN,),
        changes_state=True,
    ),
    Operation(
        "GET",
        "/admin/v1/routes",
        "list_routes",
        "The routes, in the order in which they are tried.",
        routes.list_all,
        gives=documents.Routes,
    ),
    Operation(
        "GET",
        "/admin/v1/routes/{name}",
        "get_route",
        "One route.",
        routes.show,
        gives=RouteConfig,
        problems={404: "no such route"},
    ),
    Operation(
        "GET",
        "/admin/v1/routes/{name}/shadow",
        "compare_shadows",
        "What the route's shadow policies would have chosen, compared with what was chosen and what came of it.",
        routes.shadow,
        gives=documents.ShadowComparison,
        query=(Query("window_s", 600, 3_600, "seconds to look back, in whole minutes"),),
        problems={404: "no such route", 422: "window_s is not a number from 1 to 3600"},
    ),
    Operation(
        "POST",
        "/admin/v1/reload",
        "reload",
        "Read the settings again (file, environment, flags) and apply what has changed, as a whole or not at all.",
        reload.reload,
        role=Role.ADMIN,
        gives=documents.ReloadDocument,
        query=(DRY_RUN,),
        problems={422: "the settings have mistakes; detail has one line for each, with its place and the fix"},
        changes_state=True,
    ),
    Operation(
        "POST",
        "/admin/v1/explain",
        "explain",
        "The decision that a request would get now, and why. Nothing is generated on a worker and nothing is reserved.",
        decisions.explain,
        takes=documents.Question,
        gives=documents.ExplanationDocument,
        problems={404: "the path is not served", **_INVALID},
    ),
    Operation(
        "GET",
        "/admin/v1/decisions",
        "list_decisions",
        "The latest decisions with their reasons and outcomes, newest first.",
        decisions.latest,
        gives=documents.Decisions,
        query=(
            Query("limit", 100, 10_000, "most decisions to return; decisions_kept bounds how many there are"),
            CURSOR,
            *decisions.FILTERS,
            decisions.CANDIDATES,
            WATCH,
        ),
        watch=decisions.WATCHED,
        problems=_WRONG_PARAMETER,
    ),
    Operation(
        "GET",
        "/admin/v1/audit",
        "list_audit",
        "Changes that were asked of this port, with who asked, from where, and the outcome, newest first.",
        audit.latest,
        gives=documents.AuditPage,
        query=(Query("limit", 100, 1_000, "most entries to return; the latest 1,000 are kept"), CURSOR),
        problems=_WRONG_PARAMETER,
    ),
    Operation(
        "GET",
        "/admin/v1/limits",
        "get_limits",
        "What each tenant and key has left of its limits now.",
        limits.show,
        gives=documents.LimitsDocument,
    ),
    Operation(
        "GET",
        "/admin/v1/config",
        "get_config",
        "The settings in effect, without secrets.",
        health.config,
        gives=Config,
    ),
)

READS = tuple(operation for operation in OPERATIONS if operation.method == "GET" or operation.name == "explain")
"""Operations that change nothing."""
