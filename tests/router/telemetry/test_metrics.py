from types import SimpleNamespace

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from policies.view import Residency
from router.errors import ErrorKind, RequestError
from router.placement.request import FailurePoint
from router.residency.exact.difference import Difference
from router.telemetry.catalogue import CATALOGUE, Kind
from router.telemetry.exposition import Exposition
from router.telemetry.metrics import Metrics, Registry

REQUEST = ("/v1/completions", "default", "m")
LABELS = (("model", "m"), ("path", "/v1/completions"), ("route", "default"))
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"


def scrape(metrics, *readings):
    page, content_type = Exposition(metrics.registry, readings).render()
    assert content_type.startswith("text/plain; version=")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def exercised():
    metrics = Metrics()
    metrics.request_ended(REQUEST, 200, 0.3, TRACE)
    metrics.error("no_worker_available", "before_first")
    metrics.route_error(REQUEST, "before_first")
    metrics.reported(REQUEST, 700, 500)
    metrics.first_event(REQUEST, 0.02)
    metrics.gaps([0.001, 0.02, 99.0], REQUEST)
    metrics.lengths(REQUEST, 700, None)
    metrics.identified(0.0001, "rendered")
    metrics.queued(0.2, True)
    metrics.queued(9.0, False)
    metrics.retried(FailurePoint.CONNECT)
    metrics.pulled("pulled")
    metrics.pulled("missed")
    metrics.pulled("missed")
    metrics.redialled()
    metrics.client_aborted("stream")
    metrics.decision_took(0.0002)
    ticket = SimpleNamespace(
        candidate=SimpleNamespace(id="h:1"),
        residency=Residency.EXACT,
        request=SimpleNamespace(prompt_tokens=64),
        record=SimpleNamespace(route="default", policy="marginal_cost"),
    )
    metrics.service_level("default", "ttft", True)
    metrics.decided(ticket)
    metrics.failed(ticket, FailurePoint.SENT, "why")
    metrics.rejected(None, RequestError(ErrorKind.MODEL_NOT_FOUND, "no"))
    for predicted, reported in ((32, 32), (48, 32), (0, 16)):
        metrics.compared("h:1", predicted, reported)
    metrics.differed("h:1", Difference.EVICTED_WHILE_QUEUED)
    metrics.differed("h:1", Difference.OTHER)
    metrics.misrouted("h:1")
    metrics.probed("load", False)
    metrics.self_tested("exact")
    metrics.replayed("h:1", "filled")
    metrics.loop_lag(0.003)
    return metrics


def test_every_call_appears_in_the_exposition():
    page = scrape(exercised())
    assert page["warmroute_route_decisions_total", (("policy", "marginal_cost"), ("route", "default"))] == 1
    level = (("met", "true"), ("route", "default"), ("target", "ttft"))
    assert page["warmroute_service_level_requests_total", level] == 1
    assert page["warmroute_requests_total", (*LABELS, ("status", "200"))] == 1
    assert page["warmroute_inter_token_latency_seconds_count", LABELS] == 3
    for bound, count in (("0.01", 1), ("80.0", 2), ("+Inf", 3)):
        assert page["warmroute_inter_token_latency_seconds_bucket", (("le", bound), *LABELS)] == count
    assert page["warmroute_request_prompt_tokens_bucket", (("le", "500.0"), *LABELS)] == 0
    assert page["warmroute_request_prompt_tokens_bucket", (("le", "1000.0"), *LABELS)] == 1
    served = [label for label in LABELS if label[0] != "path"]
    assert page["warmroute_route_errors_total", (served[0], ("phase", "before_first"), served[1])] == 1
    for cached, tokens in (("true", 500), ("false", 200)):
        assert page["warmroute_route_prompt_tokens_total", (("cached", cached), *served)] == tokens
    assert ("warmroute_request_output_tokens_count", LABELS) not in page
    assert page["warmroute_queue_seconds_count", (("placed", "false"),)] == 1
    pulls = [page["warmroute_pulls_total", (("outcome", outcome),)] for outcome in ("pulled", "missed")]
    assert pulls == [1, 2]
    assert page["warmroute_decisions_total", (("residency", "exact"), ("worker", "h:1"))] == 1
    for source in ("predicted", "reported"):
        assert page["warmroute_cached_tokens_total", (("source", source), ("worker", "h:1"))] == 80
    outcomes = [
        page["warmroute_cached_comparisons_total", (("outcome", o), ("worker", "h:1"))]
        for o in ("equal", "over", "under")
    ]
    assert outcomes == [1, 1, 1]
    assert page["warmroute_misrouted_requests_total", (("worker", "h:1"),)] == 1
    for reason in ("evicted_while_queued", "other"):
        assert page["warmroute_cached_differences_total", (("reason", reason), ("worker", "h:1"))] == 1
    assert page["warmroute_rejections_total", (("code", "model_not_found"),)] == 1


def test_policy_errors_are_counted_and_logged_once(caplog):
    metrics = Metrics()
    metrics.policy_failed("mine", "it raised KeyError('x')", True)
    metrics.policy_failed("mine", "it raised KeyError('x')", False)
    assert scrape(metrics)["warmroute_policy_errors_total", (("policy", "mine"),)] == 2
    (record,) = caplog.records
    assert (record.levelname, record.policy, record.reason) == ("WARNING", "mine", "it raised KeyError('x')")


def test_statistics_count_series():
    assert exercised().statistics()["counter_series"] > 10


def test_a_worker_that_is_gone_leaves_no_series():
    metrics = exercised()
    metrics.worker_gone("h:1")
    assert not any(dict(labels).get("worker") == "h:1" for _, labels in scrape(metrics))
    assert ("warmroute_redials_total", ()) in scrape(metrics)


def test_readings_at_scrape_time():
    held = [3.0]
    metrics = Metrics()
    exposition = Exposition(
        metrics.registry,
        [lambda: [("warmroute_queued_requests", (), held[0]), ("warmroute_event_gaps", ("h:1",), 2.0)]],
    )
    assert b"warmroute_queued_requests 3.0" in exposition.render()[0]
    held[0] = 4.0
    page = exposition.render()[0]
    assert b"warmroute_queued_requests 4.0" in page and b'warmroute_event_gaps_total{worker="h:1"} 2.0' in page


def test_undeclared_readings_and_instruments_are_refused():
    with pytest.raises(KeyError, match="not a gauge or counter"):
        Exposition(Registry(), [lambda: [("warmroute_nonsense", (), 1.0)]]).render()
    with pytest.raises(KeyError):
        Registry().counter("nonsense")
    with pytest.raises(KeyError, match="counter"):
        Registry().counter("queued_requests")


def test_catalogue_names_labels_and_buckets_are_valid():
    names = [spec.name for spec in CATALOGUE]
    assert len(set(names)) == len(names)
    for spec in CATALOGUE:
        assert spec.name.startswith("warmroute_") and not spec.name.endswith("_total")
        assert spec.help.endswith(".")
        assert bool(spec.buckets) == (spec.kind is Kind.HISTOGRAM)
        assert list(spec.buckets) == sorted(set(spec.buckets))


def test_a_scraper_of_openmetrics_gets_the_trace_of_the_latest_request_in_a_bucket():
    metrics = exercised()
    metrics.request_ended(REQUEST, 200, 0.2, "b" * 32)
    page, content_type = Exposition(metrics.registry).render(OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in openmetrics.text_string_to_metric_families(page.decode())}
    durations = families["warmroute_request_duration_seconds"].samples
    traced = {sample.labels["le"]: sample.exemplar for sample in durations if sample.exemplar}
    assert [(bound, each.labels, each.value) for bound, each in traced.items()] == [
        ("0.3", {"trace_id": "b" * 32}, 0.2)
    ]
    assert families.keys() >= {spec.name for spec in CATALOGUE}


@pytest.mark.parametrize("accept", ["", "*/*", "text/plain;version=x.y", "text/plain; version=1.0.0, */*;q=0.1"])
def test_other_scrapers_get_the_classic_format(accept):
    page, content_type = Exposition(exercised().registry).render(accept)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert TRACE.encode() not in page and b"# EOF" not in page


@pytest.mark.parametrize("version", ["", ";version=abc", "; version=1.0.0;escaping=what; q=0.7"])
def test_every_version_of_openmetrics_gets_the_one_there_is(version):
    accept = f"text/plain;q=0.3, Application/OpenMetrics-Text{version}"
    assert Exposition(Registry()).render(accept)[0].endswith(b"# EOF\n")


def test_process_metrics_are_exported():
    assert any(name.startswith("process_") for name, _ in scrape(Metrics()))
