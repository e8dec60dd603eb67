"""The dashboards and alerts: each query names metrics and labels that exist, each alert fires and does not, and has a
place in the runbook.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from router.diagnosis.conditions import CONDITIONS
from router.metrics.catalogue import CATALOGUE, PROCESS, Kind
from tests.support.monitoring import queries

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FILES = sorted((DEPLOY / "grafana").glob("*.json"))
RULES = DEPLOY / "prometheus" / "rules.yml"
ALERTS = {rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
OF_PROMETHEUS = {"job", "instance", "le"}
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def exported():
    """Each name under which Prometheus stores a metric, with its labels."""
    for spec in (*CATALOGUE, *PROCESS):
        for ending in ("_bucket", "_sum", "_count") if spec.kind is Kind.HISTOGRAM else ("",):
            yield f"{spec.exported_name}{ending}", {*spec.labels, *OF_PROMETHEUS}


LABELS = dict(exported())


def unknown(query):
    """The names of a query that nothing exports, and the labels that its metrics do not have."""
    found = re.findall(r"\b((?:warmroute|process)_\w+)(?:\{([^}]*)\})?", query)
    assert found, query
    wrong = [name for name, _ in found if name not in LABELS]
    for name, selector in found:
        wrong += [label for label in re.findall(r"(\w+)\s*[=!]", selector) if label not in LABELS.get(name, ())]
    known = set().union(*(LABELS.get(name, ()) for name, _ in found))
    for grouped in re.findall(r"\b(?:by|on) \(([^)]*)\)", query):
        wrong += [label for label in re.split(r",\s*", grouped) if label not in known]
    return wrong


EVERY_QUERY = [(file.stem, title, query) for file in FILES for title, query in queries(json.loads(file.read_text()))]


def test_there_are_four_dashboards():
    assert [file.stem for file in FILES] == ["fleet", "gateway", "routing-quality", "service-levels"]
    assert len(EVERY_QUERY) > 80


@pytest.mark.parametrize("query", [pytest.param(query, id=f"{file}-{title}") for file, title, query in EVERY_QUERY])
def test_a_panel_asks_for_metrics_and_labels_that_exist(query):
    assert unknown(query) == []


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_asks_for_metrics_and_labels_that_exist(alert):
    assert unknown(ALERTS[alert]["expr"]) == []


def test_a_misspelt_name_or_label_is_found():
    assert unknown('sum by (rout) (rate(warmroute_requests_totl{pth="x"}[5m]))') == [
        "warmroute_requests_totl",
        "pth",
        "rout",
    ]


def test_the_alerts_are_the_conditions_of_the_diagnosis():
    assert list(ALERTS) == [condition.alert for condition in CONDITIONS]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_two_panels_of_a_dashboard_overlap_or_have_one_id(file):
    panels = json.loads(file.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24


def test_each_alert_has_its_place_in_the_runbook():
    page = (ROOT / "docs" / "how-to" / "operate.md").read_text()
    assert re.findall(r"^### (Warmroute\w+)$", page, re.MULTILINE) == list(ALERTS)
    for name, rule in ALERTS.items():
        assert rule["annotations"]["runbook_url"] == f"docs/how-to/operate.md#{name.lower()}"
        assert rule["annotations"]["summary"] and rule["annotations"]["description"]
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}


def test_the_page_names_panels_that_exist():
    titles = {title for _, title, _ in EVERY_QUERY}
    for name in ("operate", "troubleshoot"):
        page = (ROOT / "docs" / "how-to" / f"{name}.md").read_text()
        text = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
        named = set(re.findall(r'(?<!\w)"([A-Z][^"\n]+)"', text))
        assert named and named <= titles


def series(name, values, **labels):
    labels = {"job": "warmroute", "instance": "g:8001", **labels}
    return {"series": f"{name}{{{', '.join(f'{k}={json.dumps(v)}' for k, v in labels.items())}}}", "values": values}


def of(name, **labels):
    return lambda values: [series(f"warmroute_{name}", values, **labels)]


def beside(first, second):
    return lambda values: [*first(values[0]), *second(values[1])]


WORKER, SLO = {"worker": "w:8000"}, {"route": "chats", "target": "ttft"}
LAG = [("0.032", 99.5), ("0.128", 100.0), ("+Inf", 100.0)], [("0.032", 50.0), ("0.128", 99.9), ("+Inf", 100.0)]


def lags(buckets):
    return [series("warmroute_loop_lag_seconds_bucket", f"0+{each}x120", le=bound) for bound, each in buckets]


MEMORY = beside(
    lambda values: [series("process_resident_memory_bytes", values)], of("memory_limit_bytes", source="cgroup")
)
CASES = {
    "WarmrouteAbsent": (of("build_info"), "1x120", "_x120"),
    "WarmrouteNoWorkerReady": (of("ready_workers"), "1x120", "0x120"),
    "WarmrouteModelWithoutWorker": (of("model_ready_workers", model="m"), "1x120", "0x120"),
    "WarmrouteWorkerUnhealthy": (of("worker_state", endpoint="w:8000", state="unhealthy"), "0 1 0x118", "1x120"),
    "WarmrouteWorkersKept": (of("workers_kept"), "0x120", "2x120"),
    "WarmrouteWorkerNotUp": (
        of("worker_state", endpoint="w:8000", state="starting"), "1x100 0x20", "1x120"
    ),
    "WarmrouteRequestsQueued": (of("queued_requests"), "9 0 9 0 9 0 9 0 9 0x111", "3x120"),
    "WarmrouteFleetSaturated": (of("queued_prefill_seconds", **WORKER), "1.5x120", "2.5x120"),
    "WarmrouteKvCacheFull": (of("worker_kv_usage_ratio", **WORKER), "0.8x120", "0.95x120"),
    "WarmrouteSourceFailing": (of("discovery_up", source="file"), "1x120", "0x120"),
    "WarmrouteEventsDisconnected": (of("event_link_up", **WORKER), "1 0 0 1x117", "0x120"),
    "WarmrouteEventsLost": (
        beside(of("event_gaps_total", **WORKER), of("event_replays_total", outcome="timeout", **WORKER)),
        ("0+1x120", "5x120"), ("0+1x120", "0+1x120"),
    ),
    "WarmrouteViewLost": (of("view_residency", residency="unknown", **WORKER), "1x105 0x15", "1x120"),
    "WarmrouteViewNotExact": (
        beside(of("view_residency", residency="approximate", **WORKER), of("event_link_up", **WORKER)),
        ("1x120", "0x120"), ("1x120", "1x120"),
    ),
    "WarmroutePredictionsWrong": (
        beside(
            of("cached_comparisons_total", outcome="equal", **WORKER),
            of("cached_comparisons_total", outcome="over", **WORKER),
        ),
        ("0+10x120", "0+1x120"), ("0+10x120", "0+10x120"),
    ),
    "WarmrouteClassMissesLevel": (
        beside(
            of("class_service_level_requests_total", request_class="chat", target="ttft", met="true"),
            of("class_service_level_requests_total", request_class="chat", target="ttft", met="false"),
        ),
        ("0+100x120", "0+1x120"), ("0+10x120", "0+10x120"),
    ),
    "WarmroutePolicyFails": (of("policy_errors_total", policy="mine"), "3x120", "0+1x120"),
    "WarmrouteTokenizerSlow": (of("models", tokenizer="worker"), "0x120", "2x120"),
    "WarmrouteReplicaAlone": (of("replica_alone"), "0x120", "1x120"),
    "WarmrouteReplicasApart": (of("replicas_apart"), "0x120", "1x120"),
    "WarmrouteServerErrors": (
        beside(of("requests_total", path="/v1/x", status="200"), of("requests_total", path="/v1/x", status="503")),
        ("0+100x120", "0+1x120"), ("0+100x120", "0+10x120"),
    ),
    "WarmrouteRetryBudgetExhausted": (of("retry_budget_exhausted_total"), "5x120", "0+1x120"),
    "WarmrouteEventLoopSlow": (lags, LAG[0], LAG[1]),
    "WarmrouteMemoryHigh": (MEMORY, ("5x120", "10x120"), ("9.5x120", "10x120")),
    "WarmrouteBuffersFull": (
        beside(of("buffered_bytes", content="requests"), of("buffered_limit_bytes", content="requests")),
        ("5x120", "10x120"), ("9x120", "10x120")
    ),
    "WarmrouteProcessRestarts": (of("process_restarts_total"), "0x120", "0+1x120"),
    "WarmrouteReloadFailed": (of("reloads_total", what="tls", outcome="failed"), "1x120", "0+1x120"),
    "WarmrouteStateNotSaved": (of("state_problems", problem="unsaved"), "0x120", "1x120"),
    "WarmrouteStateSetAside": (of("state_problems", problem="set_aside"), "0x120", "1x120"),
    "WarmrouteLogLinesLost": (of("log_lines_dropped_total"), "9x120", "0+1x120"),
    "WarmrouteDecisionsLost": (of("decision_log_lost_windows_total"), "9x120", "0+1x120"),
    "WarmrouteLimitsRefuse": (
        beside(
            of("limit_refusals_total", account="a", limit="requests_per_minute"),
            of("limit_admitted_requests_total", account="a"),
        ),
        ("0+1x120", "0+10x120"), ("0+9x120", "0+10x120"),
    ),
    "WarmrouteRouteRefuses": (of("route_refusals_total", route="chats"), "7x120", "0+1x120"),
    "WarmrouteServiceLevelMissed": (
        beside(
            of("service_level_requests_total", met="true", **SLO),
            of("service_level_requests_total", met="false", **SLO),
        ),
        ("0+100x120", "0+1x120"), ("0+100x120", "0+20x120"),
    ),
}  # fmt: skip
"""For each alert its series, with values that keep it quiet and values that make it fire, minute by minute."""


def test_each_alert_has_a_case():
    assert list(CASES) == list(ALERTS)


def fired(values, folder):
    """Those of the alerts which Prometheus fires after 110 minutes with these values, each in a file by itself."""
    files = []
    for alert, given in values.items():
        rules, file = folder / f"{alert}.rules.yml", folder / f"{alert}.yml"
        rules.write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [ALERTS[alert]]}]}))
        case = {
            "interval": "1m",
            "input_series": CASES[alert][0](given),
            "alert_rule_test": [{"eval_time": "110m", "alertname": alert, "exp_alerts": []}],
        }
        file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [case]}))
        files.append(file)
    done = subprocess.run(["promtool", "test", "rules", *files], capture_output=True, text=True, timeout=100)
    said = done.stdout + done.stderr
    assert done.returncode == 0 or "got:" in said, said
    return set(re.findall(r'alertname="(\w+)"', said)) if done.returncode else set()


@needs_promtool
def test_each_alert_fires_on_its_trouble_and_not_without(tmp_path):
    assert fired({alert: quiet for alert, (_, quiet, _) in CASES.items()}, tmp_path) == set()
    assert fired({alert: trouble for alert, (_, _, trouble) in CASES.items()}, tmp_path) == set(CASES)


@needs_promtool
def test_prometheus_can_read_every_query_of_the_dashboards(tmp_path):
    rules = [{"record": f"q{number}", "expr": query} for number, (_, _, query) in enumerate(EVERY_QUERY)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and f"{len(rules)} rules found" in done.stdout, done.stdout + done.stderr


@needs_promtool
def test_prometheus_can_read_the_alerts():
    done = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and f"{len(ALERTS)} rules found" in done.stdout, done.stdout + done.stderr
