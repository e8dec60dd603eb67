"""Every operation of the admin port. A worker's id is ``host:port``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, TypeAlias

from backends.vllm.operations import OperationName
from router.admin import documents
from router.admin.changes import DRY_RUN
from router.admin.fleet import fleet_rows, health, replicas, sources, worker_operations, workers
from router.admin.http.paging import CURSOR
from router.admin.http.parameters import Query, TruthQuery
from router.admin.observe import audit, decisions, diagnosis, prefixes, traffic, what_if, whoami
from router.admin.operations import Answer, Call, Operation
from router.admin.settings import limits, log_level, policy, reload, revisions, routes
from router.admin.settings.named_settings import NAMED_OPERATIONS
from router.admin.watch import WATCH
from router.config.model import Config, RouteConfig
from router.diagnosis.diagnose import Diagnosis
from router.security.token import Role

Handle: TypeAlias = Callable[[Call], Awaitable[Answer]]

OPEN_PATHS = ("/livez", "/readyz")
"""Answered without a token."""
_NO_REVISION = {404: "no such revision, or it is no longer kept"}
_UNKNOWN = {404: "no such worker"}
_WRONG_QUERY = {422: "wait_s is not a whole number from 1 to 3600"}
_WRONG_PARAMETER = {422: "a query parameter has a value that is not valid"}
_INVALID = {422: "a field is missing, unknown, or has a value that is not valid"}
_NOT_ALLOWED = (
    "the Host or Origin header is not allowed, the token's role is too low, or the setting worker_operations does not "
    "have the operation"
)
_OPERATED = {
    403: _NOT_ALLOWED,
    404: "no such worker",
    422: "a value is not valid",
    409: "the worker refused; detail says why",
    502: "the worker gave no answer, and may have done it",
}
_OPERATION_DRY_RUN = TruthQuery("dry_run", "answer with the workers that would be asked, and ask none")


def _read(path: str, name: str, summary: str, handle: Handle, gives: Any, **more: Any) -> Operation:
    return Operation("GET", f"/admin/v1/{path}", name, summary, handle, gives=gives, **more)


def _change(method: str, path: str, name: str, summary: str, handle: Handle, **more: Any) -> Operation:
    """Return a change of the desired state."""
    more = {"role": Role.ADMIN, "query": (DRY_RUN,), "changes_state": True, **more}
    return Operation(method, f"/admin/v1/{path}", name, summary, handle, **more)


def _operation(kind: OperationName, name: str, summary: str, role: Role, takes: Any = None) -> Operation:
    """Return an operation that one worker carries out."""
    return Operation(
        "POST",
        f"/admin/v1/workers/{{id}}/{kind}",
        name,
        summary,
        worker_operations.one(kind),
        role=role,
        takes=takes,
        gives=documents.WorkerResult,
        query=(_OPERATION_DRY_RUN,),
        problems=_OPERATED if takes is None else {**_OPERATED, **_INVALID},
    )


OPERATIONS = (
    Operation("GET", "/livez", "live", "Is the process alive?", health.live, gives=documents.Live),
    Operation(
        "GET",
        "/readyz",
        "ready",
        "Can requests be served?",
        health.ready,
        gives=documents.Ready,
        query=(TruthQuery("verbose", "show the sources of workers too"),),
        problems={
            **_WRONG_PARAMETER,
            503: "no worker is ready, or the gateway is starting or stopping; detail says which",
        },
    ),
    Operation(
        "GET",
        "/metrics",
        "metrics",
        "All metrics: OpenMetrics with exemplars if Accept asks for it, else Prometheus text format.",
        health.metrics,
        media_type="text/plain",
    ),
    _read(
        "workers",
        "list_workers",
        "All workers: state, models, view of the cache, load, learned speed, predicted against reported cached tokens.",
        workers.list_all,
        documents.Workers,
        query=(Query("limit", 10_000, 10_000, "most workers to return"), CURSOR, WATCH),
        watch=workers.WATCHED,
        problems={410: "the worker that the cursor names has left the fleet", **_WRONG_PARAMETER},
    ),
    _read(
        "fleet",
        "list_fleet",
        "All candidates in short, for an overview that follows them.",
        fleet_rows.list_all,
        documents.FleetOverview,
        query=(Query("limit", 10_000, 10_000, "most candidates to return"), CURSOR, WATCH),
        watch=fleet_rows.WATCHED,
        problems={410: "the candidate that the cursor names has left the fleet", **_WRONG_PARAMETER},
    ),
    _change(
        "POST",
        "workers",
        "add_worker",
        "Add a worker. It takes requests after its first successful probe.",
        workers.add,
        takes=documents.NewWorker,
        gives=documents.Worker,
        status=HTTPStatus.CREATED,
        problems={409: "the worker is in the fleet already", **_INVALID},
    ),
    _read("workers/{id}", "get_worker", "One worker.", workers.show, documents.Worker, problems=_UNKNOWN),
    _change(
        "PATCH",
        "workers/{id}",
        "change_worker",
        "Change settings of a worker in place, by a merge patch. Its requests continue.",
        workers.change,
        takes=documents.WorkerChange,
        gives=documents.Worker,
        problems={**_UNKNOWN, **_INVALID},
    ),
    _change(
        "DELETE",
        "workers/{id}",
        "remove_worker",
        "Remove a worker at once. Started answers run to their end, other requests move. To wait, drain it first.",
        workers.remove,
        status=HTTPStatus.NO_CONTENT,
        problems=_UNKNOWN,
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
        "PUT",
        "/admin/v1/registrations/{id}",
        "register_worker",
        "Register a worker for ttl_s seconds, or renew its registration. 201: it is new. Only changes are audited.",
        sources.register,
        role=Role.REGISTER,
        takes=documents.NewRegistration,
        gives=documents.RegistrationDocument,
        further=(HTTPStatus.CREATED,),
        problems={
            403: "discovery.registration_networks does not have an address of the worker",
            507: "there are 20,000 registrations already",
            **_INVALID,
        },
    ),
    Operation(
        "DELETE",
        "/admin/v1/registrations/{id}",
        "deregister_worker",
        "End a registration. The worker gets no new requests, and leaves once it has none.",
        sources.deregister,
        role=Role.REGISTER,
        status=HTTPStatus.NO_CONTENT,
        problems={404: "no such registration"},
    ),
    Operation(
        "POST",
        "/admin/v1/workers/{id}/pause",
        "pause_worker",
        "Send a worker no new requests, wait for those that run there, and pause it. Maintenance is on afterwards.",
        worker_operations.one("pause"),
        role=Role.OPERATE,
        query=(worker_operations.WAIT_S, _OPERATION_DRY_RUN),
        problems={**_OPERATED},
        gives=documents.WorkerResult,
    ),
    _operation("resume", "resume_worker", "Resume a paused worker and end its maintenance.", Role.OPERATE),
    _operation(
        "reset-prefix-cache", "reset_prefix_cache", "Empty the prefix cache of a worker. It must be idle.", Role.ADMIN
    ),
    _operation(
        "load-lora",
        "load_lora",
        "Load a LoRA adapter from a folder on the worker's host, and serve it as a model.",
        Role.ADMIN,
        documents.LoraAdapter,
    ),
    _operation("unload-lora", "unload_lora", "Stop serving a LoRA adapter.", Role.ADMIN, documents.LoraName),
    Operation(
        "POST",
        "/admin/v1/worker-operations",
        "operate_workers",
        "One operation on all workers of a model, with labels or of a role. 207: some have not done it.",
        worker_operations.selected,
        role=Role.ADMIN,
        takes=documents.SelectedOperation,
        gives=documents.WorkerResults,
        further=(HTTPStatus.MULTI_STATUS,),
        query=(_OPERATION_DRY_RUN,),
        problems={403: _NOT_ALLOWED, 404: "no worker is selected", **_INVALID},
    ),
    _read(
        "policy",
        "get_policy",
        "The policy in use, and all policies that can be chosen.",
        policy.show,
        documents.PolicyDocument,
    ),
    _change(
        "PUT",
        "policy",
        "set_policy",
        "Choose another policy, from the next request on.",
        policy.change,
        takes=documents.NewPolicy,
        gives=documents.PolicyDocument,
        problems=_INVALID,
    ),
    _read(
        "policies",
        "list_policies",
        "The further policies by name, which routes can choose.",
        routes.policies,
        documents.Policies,
    ),
    _change(
        "PUT",
        "policies/{name}",
        "put_policy",
        "Add a further policy, or change the one of that name, from the next request on.",
        routes.set_policy,
        takes=documents.NewPolicy,
        gives=documents.Policies,
        problems=_INVALID,
    ),
    _change(
        "DELETE",
        "policies/{name}",
        "remove_policy",
        "Remove a further policy that no route names.",
        routes.remove_policy,
        status=HTTPStatus.NO_CONTENT,
        problems={404: "no such policy", 422: "a route names it"},
    ),
    _read(
        "routes", "list_routes", "The routes, in the order in which they are tried.", routes.list_all, documents.Routes
    ),
    _change(
        "PUT",
        "routes",
        "set_routes",
        "Use other routes from the next request on. Requests that wait keep their places.",
        routes.change,
        takes=documents.NewRoutes,
        gives=documents.Routes,
        problems=_INVALID,
    ),
    _read("routes/{name}", "get_route", "One route.", routes.show, RouteConfig, problems={404: "no such route"}),
    _read(
        "routes/{name}/shadow",
        "compare_shadows",
        "What the route's shadow policies would have chosen, compared with what was chosen and what came of it.",
        routes.shadow,
        documents.ShadowComparison,
        query=(Query("window_s", 600, 3_600, "seconds to look back, in whole minutes"),),
        problems={404: "no such route", 422: "window_s is not a number from 1 to 3600"},
    ),
    *NAMED_OPERATIONS,
    _read(
        "desired-state",
        "get_desired_state",
        "What operators can change while the gateway runs, and what the API has changed in it.",
        revisions.desired_state,
        documents.DesiredStateDocument,
    ),
    _read(
        "revisions",
        "list_revisions",
        "The latest changes of the desired state, newest first.",
        revisions.list_all,
        documents.Revisions,
        query=(Query("limit", 100, 10_000, "most revisions to return; the latest 100 are kept"), CURSOR, WATCH),
        watch=revisions.WATCHED,
        problems={410: "the revision that the cursor names is no longer kept", **_WRONG_PARAMETER},
    ),
    _read(
        "revisions/{number}",
        "get_revision",
        "One revision, with its differences from the version before.",
        revisions.show,
        documents.RevisionDocument,
        problems=_NO_REVISION,
    ),
    _change(
        "POST",
        "revisions/{number}/restore",
        "restore_revision",
        "Bring the gateway back to the state that a revision made. This makes a new revision.",
        revisions.restore,
        gives=documents.ChangeDocument,
        problems=_NO_REVISION,
    ),
    _change(
        "POST",
        "reload",
        "reload",
        "Read the settings again (file, environment, flags) and apply what has changed, as a whole or not at all.",
        reload.reload,
        gives=documents.ReloadDocument,
        problems={422: "the settings have mistakes; detail has one line for each, with its place and the fix"},
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
        "POST",
        "/admin/v1/what-if",
        "what_if",
        "What another policy would have chosen at the latest decisions. Nothing changes.",
        what_if.show,
        takes=documents.PolicyQuestion,
        gives=documents.WhatIfDocument,
        problems={409: "another what-if runs", **_INVALID},
    ),
    _read(
        "decisions",
        "list_decisions",
        "The latest decisions with their reasons and outcomes, newest first.",
        decisions.latest,
        documents.Decisions,
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
    _read(
        "diagnosis",
        "diagnose",
        "What hurts, and what to try: findings with evidence, from the gateway's own measurements.",
        diagnosis.show,
        Diagnosis,
    ),
    _read(
        "prefixes",
        "list_prefixes",
        "The shared prefixes that save the most prefill work: sizes, hits and copies, and no text.",
        prefixes.hottest,
        documents.Prefixes,
        query=(Query("limit", 20, 100, "most prefixes to return"),),
        problems=_WRONG_PARAMETER,
    ),
    _read(
        "traffic",
        "show_traffic",
        "The traffic of the last hour by route and model, in points of ten seconds, newest first.",
        traffic.show,
        documents.Traffic,
        query=(Query("limit", 360, 360, "most points to return"), CURSOR, WATCH),
        watch=traffic.WATCHED,
        problems={410: "the point that the cursor names is older than an hour", **_WRONG_PARAMETER},
    ),
    _read(
        "audit",
        "list_audit",
        "Changes asked of this port: who, from where, and the outcome; newest first.",
        audit.latest,
        documents.AuditPage,
        query=(Query("limit", 100, 1_000, "most entries to return; the latest 1,000 are kept"), CURSOR),
        problems=_WRONG_PARAMETER,
    ),
    _read(
        "whoami", "whoami", "The name and the role of the token that the request brings.", whoami.show, documents.Whoami
    ),
    _read(
        "replicas",
        "list_replicas",
        "The gateways of the fleet, and whether this one is alone.",
        replicas.list_all,
        documents.ReplicasDocument,
    ),
    _read(
        "limits",
        "get_limits",
        "What each tenant and key has left of its limits now.",
        limits.show,
        documents.LimitsDocument,
    ),
    _read("log-level", "get_log_level", "The lowest level that is logged.", log_level.show, documents.LogLevel),
    Operation(
        "PUT",
        "/admin/v1/log-level",
        "set_log_level",
        "Log from another level on, in all processes and until the gateway ends.",
        log_level.change,
        role=Role.OPERATE,
        takes=documents.LogLevel,
        gives=documents.LogLevel,
        problems={503: "a process did not answer and keeps its level", **_INVALID},
    ),
    _read("config", "get_config", "The settings in effect, without secrets.", health.config, Config),
)

READS = tuple(operation for operation in OPERATIONS if not operation.changes)
"""Operations that change nothing."""
