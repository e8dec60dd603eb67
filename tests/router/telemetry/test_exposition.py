import asyncio
from types import SimpleNamespace

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from policies.view import Residency
from router.metrics.catalogue import CATALOGUE, Kind
from router.metrics.registry import Registry
from router.requests.metrics import GatewayMetrics
from router.telemetry.exposition import Exposition
from router.telemetry.snapshot import page

REQUEST = ("/v1/completions", "default", "m")
LABELS = (("model", "m"), ("path", "/v1/completions"), ("route", "default"))
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"


def render(registry, accept="", read=tuple):
    exposition = Exposition(registry, [SimpleNamespace(readings=read)])
    return page(asyncio.run(exposition.snapshot()), accept)


def scrape(registry):
    text, content_type = render(registry)
    assert content_type.startswith("text/plain; version=")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def exercised():
    registry = Registry()
    metrics = GatewayMetrics(registry)
    metrics.requests.add(1.0, (*REQUEST, "200"))
    metrics.durations.observe(0.3, REQUEST)
    metrics.durations.exemplify(0.3, REQUEST, TRACE, 1_700_000_000.0)
    metrics.errors.add(1.0, ("no_worker", "before_first", *REQUEST[1:]))
    metrics.itl.at(REQUEST).observe_all([0.001, 0.02, 99.0])
    metrics.prompt_lengths.observe(700, REQUEST)
    metrics.redials.add()
    registry.counter("decisions").add(1.0, ("h:1", Residency.EXACT))
    registry.counter("cached_tokens").add(80, ("h:1", "predicted"))
    return registry


def test_counters_and_histograms_appear_in_the_exposition():
    page = scrape(exercised())
    assert page["warmroute_requests_total", (*LABELS, ("status", "200"))] == 1
    assert page["warmroute_inter_token_latency_seconds_count", LABELS] == 3
    for bound, count in (("0.01", 1), ("80.0", 2), ("+Inf", 3)):
        assert page["warmroute_inter_token_latency_seconds_bucket", (("le", bound), *LABELS)] == count
    assert page["warmroute_request_prompt_tokens_bucket", (("le", "500.0"), *LABELS)] == 0
    assert page["warmroute_request_prompt_tokens_bucket", (("le", "1000.0"), *LABELS)] == 1
    served = [("code", "no_worker"), ("phase", "before_first"), *(label for label in LABELS if label[0] != "path")]
    assert page["warmroute_errors_total", tuple(sorted(served))] == 1
    assert ("warmroute_request_output_tokens_count", LABELS) not in page
    assert page["warmroute_decisions_total", (("residency", "exact"), ("worker", "h:1"))] == 1
    assert page["warmroute_cached_tokens_total", (("source", "predicted"), ("worker", "h:1"))] == 80


def test_a_worker_that_is_gone_leaves_no_series():
    registry = exercised()
    registry.forget("worker", "h:1")
    assert not any(dict(labels).get("worker") == "h:1" for _, labels in scrape(registry))
    assert ("warmroute_redials_total", ()) in scrape(registry)


def test_readings_at_scrape_time():
    for held in (3.0, 4.0):
        read = [("warmroute_queued_requests", (), held), ("warmroute_event_gaps", ("h:1",), 2.0)]
        text, _ = render(Registry(), read=lambda read=read: read)
        assert b"warmroute_queued_requests %.1f" % held in text
        assert b'warmroute_event_gaps_total{worker="h:1"} 2.0' in text


def test_undeclared_readings_and_instruments_are_refused():
    with pytest.raises(KeyError, match="not a gauge or counter"):
        render(Registry(), read=lambda: [("warmroute_nonsense", (), 1.0)])
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
    registry = exercised()
    durations = registry.histogram("request_duration_seconds")
    durations.exemplify(0.2, REQUEST, "b" * 32, 1_700_000_001.0)
    text, content_type = render(registry, OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in openmetrics.text_string_to_metric_families(text.decode())}
    durations = families["warmroute_request_duration_seconds"].samples
    traced = {sample.labels["le"]: sample.exemplar for sample in durations if sample.exemplar}
    assert [(bound, each.labels, each.value) for bound, each in traced.items()] == [
        ("0.3", {"trace_id": "b" * 32}, 0.2)
    ]
    assert families.keys() >= {spec.name for spec in CATALOGUE}


@pytest.mark.parametrize("accept", ["", "*/*", "text/plain;version=x.y", "text/plain; version=1.0.0, */*;q=0.1"])
def test_other_scrapers_get_the_classic_format(accept):
    text, content_type = render(exercised(), accept)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert TRACE.encode() not in text and b"# EOF" not in text


@pytest.mark.parametrize("version", ["", ";version=abc", "; version=1.0.0;escaping=what; q=0.7"])
def test_every_version_of_openmetrics_gets_the_one_there_is(version):
    accept = f"text/plain;q=0.3, Application/OpenMetrics-Text{version}"
    assert render(Registry(), accept)[0].endswith(b"# EOF\n")


def test_process_metrics_are_exported():
    assert any(name.startswith("process_") for name, _ in scrape(Registry()))
