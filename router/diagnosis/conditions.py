"""The list of everything that is watched. `deploy/prometheus/rules.yml` is made from it (``make manifests``)."""

from __future__ import annotations

from router.diagnosis.condition import Condition, Severity, Why, fixed
from router.diagnosis.facts import SLOW_PROMPTS, Facts
from router.diagnosis.in_force import InForce
from router.diagnosis.signals import (
    Absent,
    Gauge,
    Joined,
    Late,
    Level,
    Lowest,
    Mean,
    Metric,
    Ratio,
    Risen,
    Signal,
    gateway_level,
    gateway_risen,
    level,
    risen,
    share,
)

OUTAGE, DEGRADED, ADVICE = Severity.OUTAGE, Severity.DEGRADED, Severity.ADVICE
_WORKERS_SHOWN = 5


def _worker(subject: str, facts: Facts) -> str | None:
    found = facts.worker(subject)
    return None if found is None else f"{found.shown} is {found.state}: {found.reason}"


def _all_workers(subject: str, facts: Facts) -> str | None:
    if not facts.workers:
        sources = [f"{about} {why}" for about, why in facts.reasons.items() if about.startswith("source ")]
        return "the fleet has no worker" + (f"; {', '.join(sources)}" if sources else "")
    said = [f"{one.shown} is {one.state}: {one.reason}" for one in facts.workers[:_WORKERS_SHOWN]]
    more = len(facts.workers) - len(said)
    return "; ".join(said) + (f"; and {more} more" if more > 0 else "")


def _model(subject: str, facts: Facts) -> str | None:
    serving = [one for one in facts.workers if subject in one.models]
    return "; ".join(f"{one.shown} is {one.state}: {one.reason}" for one in serving[:_WORKERS_SHOWN]) or None


def _view(subject: str, facts: Facts) -> str | None:
    view = facts.view(subject)
    return None if view is None else f"the view of {view.id} is {view.residency}: {view.reason}"


def _reason(about: str) -> Why:
    return lambda subject, facts: facts.reasons.get(about.format(subject=subject))


def _prompts(subject: str, facts: Facts) -> str | None:
    slow = [f"{model}: {way}" for model, way in facts.prompts.items() if way.startswith((SLOW_PROMPTS, "text only"))]
    return "; ".join(slow[:_WORKERS_SHOWN]) or None


def _without_workers(in_force: InForce, facts: Facts) -> list[str]:
    if not facts.workers:
        return [
            "add a worker: `warmroute workers add http://HOST:PORT`, or `workers` in the settings",
            "if a source should name workers: `warmroute workers list` shows what each source says",
        ]
    states = {one.state for one in facts.workers}
    ways = {
        "unhealthy": "start the workers again; each comes back by itself once its probe succeeds",
        "starting": "check the workers' URLs and the network: `warmroute check --worker URL`",
        "asleep": "wake the sleeping workers: POST /wake_up",
        "draining": "end the maintenance: `warmroute workers undrain ID`",
    }
    return [ways[state] for state in ways if state in states] or ["`warmroute workers list` has the state of each"]


def _view_remedies(in_force: InForce, facts: Facts) -> list[str]:
    tests = [] if in_force.self_test else ["switch the self-test on (residency.self_test: true), which proves views"]
    return [
        *tests,
        "give the gateway the tokenizer and the chat template of the model that the worker serves",
        "let vLLM keep events for a replay (--kv-events-config with replay_endpoint), so that lost ones come again",
    ]


def _for_classes(in_force: InForce, facts: Facts) -> list[str]:
    """Return what may help classes that miss their service level, without what is in force."""
    classes = in_force.classes
    no_floor = [name for name, one in classes.items() if one.slo.ttft is not None and not one.floor]
    no_tpot = [name for name, one in classes.items() if one.slo.ttft is not None and one.slo.tpot is None]
    admits_all = [name for name, one in classes.items() if one.max_wait_s is None]
    remedies = [
        (no_floor, "leave a part of each worker free (classes.NAME.floor) for {names}"),
        (no_tpot, "keep others out of the batches (classes.NAME.slo.tpot) of {names}"),
        (admits_all, "refuse what would come too late (classes.NAME.max_wait_s) in {names}"),
    ]
    found = [text.format(names=", ".join(names[:_WORKERS_SHOWN])) for names, text in remedies if names]
    return [*found, "add workers, where late streams waited for room or the worker alone takes too long"]


def _limits(in_force: InForce, facts: Facts) -> list[str]:
    return [
        "`warmroute limits left` has what is left; `warmroute limits set` changes a limit while the gateway runs",
        "if the limit is meant, let the client wait for the time that Retry-After names",
    ]


FLEET = (
    Condition(
        "absent", OUTAGE, "fleet", Absent(Metric("build_info")),
        "No gateway is scraped", "", "Prometheus has no metrics of any Warmroute gateway.",
        fixed(), alert_after="2m", finds=False,
    ),
    Condition(
        "no_worker_ready", OUTAGE, "fleet", level("ready_workers", "==", 0),
        "No worker is ready", "No worker is ready: every request fails.",
        "Requests wait for timeouts.queue_s and then get 503.",
        _without_workers, _all_workers, alert_after="1m",
    ),
    Condition(
        "model_without_worker", OUTAGE, "fleet", level("model_ready_workers", "==", 0, "model"),
        "No worker of the model {model} is ready", "Models have no ready worker: their requests fail.",
        "Its requests wait for timeouts.queue_s and then get 503.",
        fixed(
            "start a worker of the model, or end its maintenance: `warmroute workers list` has the state of each",
            "let another model answer meanwhile: models.NAME.fallback in the settings",
        ),
        _model, alert_after="1m", implied_by="no_worker_ready",
    ),
    Condition(
        "worker_unhealthy", DEGRADED, "fleet", level("worker_state", "==", 1, "endpoint", where='state="unhealthy"'),
        "Worker {endpoint} is unhealthy", "Workers cannot be reached, or fail, and get no requests.",
        "Its probes or its requests fail, so it gets no requests.",
        fixed("look at the log of that vLLM, and start it again; it comes back by itself once its probe succeeds"),
        _worker, alert_after="2m", implied_by="no_worker_ready",
    ),
    Condition(
        "workers_kept", DEGRADED, "fleet", level("workers_kept", ">", 0),
        "Workers stay in use although their probes time out",
        "Workers stay in use although their probes time out, because too few others are left.",
        "Half of a model's workers answer no probe in time: time-outs eject no further one.",
        fixed(
            "look at the workers' and the gateway's CPU time and at the network between them",
            "stop a worker that is really gone, or remove it: `warmroute workers remove ID`",
        ),
        measure="{value} workers are kept.", alert_after="1m",
    ),
    Condition(
        "worker_not_up", DEGRADED, "fleet", level("worker_state", "==", 1, "endpoint", where='state="starting"'),
        "Worker {endpoint} has not come up", "Workers have never answered a probe.",
        "It has answered no probe since it was added, for much longer than a model needs to load.",
        fixed("check its URL and the network: `warmroute check --worker URL`; remove it if it has gone"),
        _worker, alert_after="20m", finding_after_s=300.0, implied_by="no_worker_ready",
    ),
    Condition(
        "requests_queued", DEGRADED, "fleet", Signal(Lowest(Metric("queued_requests"), 5), ">", 0),
        "Requests have waited for a ready worker for five minutes", "Requests wait without a break.",
        "A queue should empty in seconds.",
        fixed("`warmroute workers list` says which workers are not ready; a route may be at its max_requests"),
        measure="{value} requests or more waited all the time.", alert_after="1m",
    ),
    Condition(
        "fleet_saturated", DEGRADED, "fleet",
        Signal(Mean(Level(Metric("queued_prefill_seconds"), ("worker",))), ">", 2),
        "Prompts wait for their prefill on all workers", "Prompts wait for their prefill on all workers.",
        "First tokens are late.", fixed("add workers, or send fewer long prompts at a time (limits, routes' queues)"),
        measure="The mean queue wait of the workers is {value}.", unit="duration",
        alert_after="10m", finding_after_s=60.0,
    ),
    Condition(
        "kv_cache_full", DEGRADED, "fleet",
        Signal(Mean(Level(Metric("worker_kv_usage_ratio"), ("worker",))), ">", 0.9),
        "The KV caches of the workers are full", "The KV caches of the workers are full.",
        "vLLM preempts requests soon.",
        fixed("add workers or KV memory: --gpu-memory-utilization, --kv-cache-dtype fp8; or lower --max-num-seqs"),
        measure="Requests in progress use {value} of the KV cache.", unit="percentage",
        alert_after="15m", finding_after_s=60.0,
    ),
    Condition(
        "source_failing", DEGRADED, "fleet", level("discovery_up", "==", 0, "source"),
        "The source of workers {source} does not answer", "A source of workers does not answer.",
        "The workers of its last answer stay, and new ones are missing.",
        fixed("`warmroute workers list` has the error of the source"), _reason("source {subject}"),
        alert_after="5m", finding_after_s=10.0,
    ),
)  # fmt: skip

ROUTING = (
    Condition(
        "events_disconnected", DEGRADED, "routing", level("event_link_up", "==", 0, "worker"),
        "The KV events of {worker} do not arrive", "The KV events of workers do not arrive.",
        "The view of its cache grows stale, and requests miss cached prefixes there.",
        fixed("let the gateway reach the KV event port that `warmroute check --worker URL` names"), _view,
        alert_after="5m", finding_after_s=10.0, implied_by="no_worker_ready", of_ready=True,
    ),
    Condition(
        "events_lost", DEGRADED, "routing",
        Joined(
            risen("event_gaps", 15, "worker"),
            risen("event_replays", 15, "worker", where='outcome=~"partial|timeout|broken|unavailable"'),
            ("job", "worker"),
        ),
        "KV events of {worker} were lost", "KV events were lost, and no replay filled the gap.",
        "The view of its cache is not exact until the blocks are learned again.",
        fixed(
            "let vLLM keep events for a replay: replay_endpoint and buffer_steps in --kv-events-config",
            "give the gateway more CPU time, if its event loop is late",
        ),
        _view,
    ),
    Condition(
        "view_lost", DEGRADED, "routing", level("view_residency", "==", 1, "worker", where='residency="unknown"'),
        "It is not known what {worker} has cached", "It is not known what workers have cached.",
        "Requests go there without regard to cached prefixes.", _view_remedies, _view,
        alert_after="15m", finding_after_s=120.0, implied_by="no_worker_ready", of_ready=True,
    ),
    Condition(
        "view_not_exact", ADVICE, "routing",
        Joined(
            level("view_residency", "==", 1, "worker", where='residency=~"approximate|unknown"'),
            level("event_link_up", "==", 1, "worker"), ("job", "worker"),
        ),
        "The view of {worker} is not exact although its KV events arrive",
        "Views are not exact although the workers' KV events arrive.",
        "Its self-test did not prove the view, or events were lost and are being relearned.", _view_remedies, _view,
        alert_after="1h", finding_after_s=120.0, of_ready=True,
    ),
    Condition(
        "predictions_wrong", ADVICE, "routing",
        share("cached_comparisons", 15, 0.3, ">", (), 'outcome!="equal"', least=20),
        "Predictions of cached tokens are often wrong", "Predictions of cached tokens are often wrong.",
        "Requests go where less is cached than the gateway thinks.",
        fixed("`warmroute_cached_differences_total` has the reasons; the page on alerts says what each means"),
        measure="{value} of the responses report another number of cached tokens.", unit="percentage",
        alert_after="15m", finding_after_s=60.0,
    ),
    Condition(
        "class_misses_level", DEGRADED, "routing",
        share("class_service_level_requests", 15, 0.05, ">", ("request_class",), 'met="false"', least=20),
        "The class {request_class} misses its service level", "Classes miss their service level.",
        "More than 5 % of their streams are later or slower than slo.ttft or slo.tpot of the class.",
        _for_classes, _reason("class {subject}"),
        measure="{value} of the first one's streams missed it.", unit="percentage",
        alert_after="10m", finding_after_s=20.0, implied_by="no_worker_ready",
    ),
    Condition(
        "policy_fails", DEGRADED, "routing", risen("policy_errors", 10, "policy"),
        "The policy {policy} raises errors", "The policy raises errors.",
        "Its requests go to the worker with the fewest queued tokens instead.",
        fixed(
            "the gateway's log has the first error; `warmroute policy set` chooses another rule at once",
            "try a policy of your own with recorded decisions before it serves: `warmroute replay`",
        ),
        measure="It failed {value} times in ten minutes.",
    ),
    Condition(
        "tokenizer_slow", ADVICE, "routing", Signal(Level(Metric("models", 'tokenizer!="local"')), ">", 0),
        "Prompts of {value} models are tokenised by a worker, or not at all",
        "Prompts of models are tokenised by a worker, or not at all.",
        "A worker's /tokenize takes several times as long; without token ids the view of a cache cannot be exact.",
        fixed("give the gateway the model's files: model_dir, or models.NAME.dir"), _prompts,
        alert_after="15m", finding_after_s=60.0,
    ),
    Condition(
        "replica_alone", DEGRADED, "routing", gateway_level("replica_alone", "==", 1),
        "The gateway {instance} does not hear the others", "This gateway does not hear the others through Redis.",
        "It decides without the load that the other gateways reserve.",
        fixed("check Redis and the network to it; `warmroute check` tries it"), _reason("redis"),
        alert_after="2m", finding_after_s=5.0,
    ),
    Condition(
        "replicas_apart", DEGRADED, "routing", gateway_level("replicas_apart", ">", 0),
        "Gateways of the fleet have other settings than {instance}",
        "Gateways of the fleet have other settings, or are not heard.",
        "The same request may be treated in different ways.",
        fixed(
            "`warmroute replicas` lists the gateways, and `warmroute revisions list` the changes",
            "the log of the gateway that is behind says why it cannot make the change",
        ),
        _reason("replicas"),
        measure="They are {value}.", alert_after="2m", finding_after_s=20.0,
    ),
)  # fmt: skip

GATEWAY = (
    Condition(
        "server_errors", OUTAGE, "gateway",
        share("requests", 5, 0.05, ">", (), 'status=~"5.."', least=5, of='path!="local"'),
        "Clients get server errors", "Clients get server errors.", "Requests fail.",
        fixed("the errors' codes say whose fault each is: `warmroute_errors_total`, docs/reference/errors.md"),
        measure="{value} of the responses have a status of 5xx.", unit="percentage", alert_after="5m",
        finding_after_s=20.0, implied_by="no_worker_ready",
    ),
    Condition(
        "retry_budget_exhausted", DEGRADED, "gateway", risen("retry_budget_exhausted", 10),
        "Failed requests are not retried any more", "Failed requests are not retried any more.",
        "More requests fail than retries.budget_ratio allows to repeat.",
        fixed("find the workers that fail: `warmroute_attempt_failures_total` names them"),
    ),
    Condition(
        "event_loop_slow", DEGRADED, "gateway", Signal(Late("loop_lag_seconds", 0.99, 5), ">", 0.05),
        "The event loop of {instance} is late", "The gateway's event loop is late.",
        "Streams stutter by as much.",
        fixed("run more processes (--processes), or give the gateway a core of its own; raise its CPU limit"),
        measure="A hundredth of its timers wake {value} late.", unit="duration",
        alert_after="10m", finding_after_s=60.0,
    ),
    Condition(
        "memory_high", DEGRADED, "gateway",
        Signal(
            Ratio(
                Level(Metric("process_resident_memory_bytes"), fold="sum", of=("job", "instance")),
                Level(Metric("memory_limit_bytes"), of=("job", "instance")), ("job", "instance"),
            ),
            ">", 0.9,
        ),
        "The gateway {instance} is near its memory limit", "The gateway is near its memory limit.",
        "The system kills it above the limit.",
        fixed("lower the budgets that `warmroute check` prints, or raise the limit"),
        measure="It uses {value} of the limit.", unit="percentage", alert_after="5m", finding_after_s=30.0,
    ),
    Condition(
        "buffers_full", DEGRADED, "gateway",
        Signal(Ratio(Gauge(Metric("buffered_bytes")), Gauge(Metric("buffered_limit_bytes"))), ">", 0.8),
        "The buffers of {instance} are nearly full", "The gateway's buffers are nearly full.",
        "Large requests then get 503, and slow readers are cut off.",
        fixed("add gateways, or give tenants max_buffered_body_bytes"), alert_after="5m", finding_after_s=10.0,
    ),
    Condition(
        "process_restarts", DEGRADED, "gateway", gateway_risen("process_restarts", 15),
        "A process of {instance} has died", "A process of the gateway has died.",
        "Its requests were lost. It was started again.",
        fixed("the log has the signal or the error; SIGKILL usually means that memory ran out"),
    ),
    Condition(
        "reload_failed", DEGRADED, "gateway", gateway_risen("reloads", 15, "what", where='outcome="failed"'),
        "{instance} cannot use a changed file ({what})", "A changed file cannot be used.",
        "The old content stays in use.",
        fixed("correct the file; the log has the mistake"),
    ),
    Condition(
        "state_not_saved", DEGRADED, "gateway", gateway_level("state_problems", "==", 1, 'problem="unsaved"'),
        "{instance} cannot write its state", "The state of the admin API's changes is not on disk.",
        "Changes of the admin API are refused, or end with the process.",
        fixed("free space in state_dir, or let this user write there; each gateway needs a state_dir of its own"),
        _reason("state"),
        alert_after="1m",
    ),
    Condition(
        "state_set_aside", DEGRADED, "gateway", gateway_level("state_problems", ">", 0, 'problem="set_aside"'),
        "{instance} could not use its state file in whole", "Changes of the admin API were set aside at the start.",
        "The gateway started from its settings, or without what a newer version had written.",
        fixed("mend the file that state_dir keeps under another name, and start again; the log has the reason"),
        alert_after="1m",
    ),
    Condition(
        "log_lines_lost", DEGRADED, "gateway", gateway_risen("log_lines_dropped", 10),
        "Log lines of {instance} are lost", "Log lines are lost.", "Their reader is too slow, stuck or gone.",
        fixed("look at what reads the gateway's stderr, and at the disk behind it"),
        measure="{value} lines were dropped in ten minutes.",
    ),
    Condition(
        "decisions_lost", DEGRADED, "gateway", gateway_risen("decision_log_lost_windows", 10),
        "Lines of the decision log of {instance} are lost", "Lines of the decision log are lost.",
        "A replay of the log misses these decisions.",
        fixed("look at the disk of decision_log.path; a smaller decision_log.share writes less"),
    ),
    Condition(
        "limits_refuse", ADVICE, "gateway",
        Signal(
            Ratio(
                Risen(Metric("limit_refusals"), 10, ("account",), rate=True),
                Risen(Metric("limit_admitted_requests"), 10, ("account",), rate=True), least=10,
            ),
            ">", 0.25,
        ),
        "The limits of {account} refuse many of its requests", "Limits refuse many requests of a caller.",
        "The caller gets 429.", _limits, alert_after="10m", finding_after_s=30.0,
    ),
    Condition(
        "route_refuses", ADVICE, "gateway", risen("route_refusals", 5, "route"),
        "The route {route} refuses requests", "Routes refuse requests.",
        "Its queue is full, or its requests wait too long.",
        fixed("raise the route's max_requests or queue_s, if the workers have room"), alert_after="5m",
        finding_after_s=30.0,
    ),
)  # fmt: skip

LEVELS = (
    Condition(
        "service_level_missed", DEGRADED, "service-levels",
        share("service_level_requests", 15, 0.95, "<", ("route", "target"), 'met="true"', least=20),
        "The route {route} misses its service level {target}", "Routes miss their service level.",
        "Streams are slower than the route's slo asks for.",
        fixed("for ttft see docs/how-to/troubleshoot.md#first-tokens-are-late, for tpot #streams-stutter"),
        measure="Only {value} of its streams met it.", unit="percentage", alert_after="10m", finds=False,
    ),
)  # fmt: skip
"""The finding of a missed service level is `ServiceLevel`, by the share that the settings name."""

CONDITIONS: tuple[Condition, ...] = (*FLEET, *ROUTING, *GATEWAY, *LEVELS)
