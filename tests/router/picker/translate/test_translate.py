from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from router.config.model import Config
from router.picker.translate.counterparts import COUNTERPARTS
from router.picker.translate.notes import Became, Findings
from router.picker.translate.page import page_of
from router.picker.translate.picker_config import VERSIONS, read_picker_config
from router.picker.translate.rules import OTHER_SCORERS
from router.picker.translate.translate import translate
from router.settings import load

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
BASELINE = """\
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- {type: prefix-cache-scorer, parameters: {hashBlockSize: 64, lruCapacityPerServer: 31250}}
- type: max-score-picker
- type: single-profile-handler
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 1.5}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - pluginRef: max-score-picker
"""
PRECISE = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: token-producer, parameters: {modelName: m, vllm: {url: "http://localhost:8000"}}}
- type: endpoint-notification-source
- type: metrics-data-source
- type: core-metrics-extractor
- type: precise-prefix-cache-producer
  parameters:
    tokenProcessorConfig: {blockSize: 64}
    kvEventsConfig: {discoverPods: true, podDiscoveryConfig: {socketPort: 5999}}
- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}}
- {type: file-discovery, name: Hosts, parameters: {path: /etc/epp/endpoints.yaml, watchFile: true}}
dataLayer:
  sources:
  - {pluginRef: metrics-data-source, extractors: [{pluginRef: core-metrics-extractor}]}
  discovery: {endpoints: {pluginRef: Hosts}}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: prefix-cache-scorer, weight: 2}]}
"""
PAIRS = """\
plugins:
- {type: disagg-profile-handler, parameters: {deciders: {prefill: by-prefix}}}
- {type: prefix-based-pd-decider, name: by-prefix, parameters: {nonCachedTokens: 16}}
- type: prefill-filter
- type: decode-filter
- type: prefix-cache-scorer
- type: active-request-scorer
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: prefix-cache-scorer, weight: 7}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: active-request-scorer}]}
"""
FLOW = """\
featureGates: [flowControl, other=false]
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: 10, headroom: 0.25}}
- type: round-robin-fairness-policy
- type: queue-scorer
schedulingProfiles:
- {name: default, plugins: [{pluginRef: queue-scorer}, {pluginRef: concurrency-detector}]}
flowControl:
  maxBytes: 10Gi
  maxRequests: 1k
  defaultRequestTTL: 300s
  noEndpointRequestTTL: 1m30s
  enableEviction: true
  saturationDetector: {pluginRef: concurrency-detector}
  priorityBands: [{priority: 100, fairnessPolicyRef: round-robin-fairness-policy}]
"""


def found(text: str) -> Findings:
    return translate(read_picker_config(text if text.startswith("apiVersion") else HEAD + text, "epp.yaml"))


def loaded(translated: Findings, folder: Path) -> Config:
    file = folder / "warmroute.yaml"
    file.write_text(page_of(translated, "epp.yaml"))
    return load({}, {}, file)


def said(translated: Findings, became: Became) -> list[str]:
    return [f"{note.item}: {note.text}" for note in translated.of(became)]


def profile(*plugins: str) -> str:
    """Return a file whose one profile has these plugins, each as ``type`` or ``type weight``."""
    names = [one.partition(" ") for one in plugins]
    declared = "".join(f"- type: {name}\n" for name, _, _ in names)
    used = ", ".join(f"{{pluginRef: {name}{f', weight: {weight}' if weight else ''}}}" for name, _, weight in names)
    return f"plugins:\n{declared}schedulingProfiles: [{{name: default, plugins: [{used}]}}]"


def test_the_usual_three_scorers_are_the_published_blend(tmp_path: Path) -> None:
    translated = found(BASELINE)
    assert translated.settings == {
        "policy": {"rule": "llmd_blend", "params": {"prefix_weight": 3.0, "queue_weight": 2.0, "kv_weight": 1.5}}
    }
    assert said(translated, Became.NOTHING) == [] and said(translated, Became.NEAREST) == []
    assert "plugins[3] max-score-picker" in " ".join(said(translated, Became.IMPLIED))
    assert loaded(translated, tmp_path).policy.params["kv_weight"] == 1.5


def test_precise_prefixes_are_kv_events_and_the_file_of_workers_is_a_source(tmp_path: Path) -> None:
    translated = found(PRECISE)
    config = loaded(translated, tmp_path)
    assert config.residency.kv_events and "residency" in translated.settings
    source = config.discovery.sources["endpoints"]
    assert (source.file, source.defaults) == ("/etc/epp/endpoints.yaml", {"kv-events-port": "5999"})
    assert said(translated, Became.NOTHING) == []
    assert not any("watchFile" in one for one in said(translated, Became.NEAREST))


def test_workers_that_connect_to_the_picker_must_bind_their_own_port() -> None:
    text = "plugins: [{type: precise-prefix-cache-scorer, parameters: {kvEventsConfig: {zmqEndpoint: 'tcp://*:5557'}}}]"
    translated = found(text)
    (missing,) = said(translated, Became.NOTHING)
    assert "zmqEndpoint" in missing and "let each bind its own port" in missing
    assert translated.settings["policy"]["params"]["prefix_weight"] == 1.0


def test_profiles_for_prefill_and_decode_are_a_handover(tmp_path: Path) -> None:
    translated = found(PAIRS)
    config = loaded(translated, tmp_path)
    assert config.handover.connector == "nixl_pull" and config.policy.rule == "least_requests"
    nearest = " ".join(said(translated, Became.NEAREST))
    assert "nixl_pull is assumed" in nearest and "by-prefix" in nearest and "kv_sidecar: llm-d" in nearest
    assert any(one.startswith("the profile prefill") for one in said(translated, Became.NOTHING))


@pytest.mark.parametrize(
    ("handler", "connector"),
    [
        ("{type: disagg-profile-handler}", None),
        ("{type: disagg-profile-handler, parameters: {deciderPluginName: always-disagg-pd-decider}}", "nixl_pull"),
        ("{type: pd-profile-handler, parameters: {threshold: 0}}", "nixl_pull"),
    ],
)
def test_a_handler_without_a_decider_makes_no_pairs(tmp_path: Path, handler: str, connector: str | None) -> None:
    translated = found(f"plugins: [{handler}, {{type: queue-scorer}}]")
    assert loaded(translated, tmp_path).handover.connector == connector


def test_the_names_of_stages_may_be_others(tmp_path: Path) -> None:
    parameters = "{deciders: {prefill: d, encode: e}, profiles: {decode: second, prefill: first}}"
    text = f"""\
plugins:
- {{type: disagg-profile-handler, parameters: {parameters}}}
- type: queue-scorer
- type: token-load-scorer
schedulingProfiles:
- {{name: first, plugins: [{{pluginRef: queue-scorer}}]}}
- {{name: second, plugins: [{{pluginRef: token-load-scorer}}]}}
"""
    translated = found(text)
    assert translated.settings["policy"]["rule"] == "lpwl"
    missing = " ".join(said(translated, Became.NOTHING))
    assert "deciders.encode" in missing and "queue-scorer: not in the profile that decides" in missing


def test_flow_control_becomes_the_limits_that_exist(tmp_path: Path) -> None:
    translated = found(FLOW)
    config = loaded(translated, tmp_path)
    assert config.limits.max_queued_requests == 1_000
    assert config.limits.max_buffered_body_bytes == 10 << 30
    assert config.limits.max_requests_per_worker == 12
    assert config.timeouts.queue_s == config.picker.pick_s == 90.0, "a pick waits no longer than pick_s"
    missing = " ".join(said(translated, Became.NOTHING))
    for key in ("priorityBands", "enableEviction", "defaultRequestTTL", "round-robin", "featureGates other=false"):
        assert key in missing, key


def test_without_its_gate_flow_control_is_off() -> None:
    translated = found(FLOW.replace("flowControl, ", ""))
    assert "timeouts" not in translated.settings
    assert any("featureGates does not have it" in one for one in said(translated, Became.IMPLIED))


def test_limits_that_flow_control_does_not_have_are_none_here(tmp_path: Path) -> None:
    translated = found(
        "featureGates: [flowControl=true]\nflowControl: {maxRequests: 0, maxBytes: '0', defaultRequestTTL: 0s}"
    )
    assert "limits" not in translated.settings and "timeouts" not in translated.settings
    assert len(said(translated, Became.NOTHING)) == 3
    assert loaded(found("featureGates: [flowControl]"), tmp_path).timeouts.queue_s == 60.0
    short = found("featureGates: [flowControl]\nflowControl: {defaultRequestTTL: 500ms}").settings
    assert short["timeouts"] == {"queue_s": 0.5} and "picker" not in short


def test_a_small_limit_of_all_bodies_bounds_each_body(tmp_path: Path) -> None:
    limits = loaded(found("featureGates: [flowControl]\nflowControl: {maxBytes: 1Mi}"), tmp_path).limits
    assert (limits.max_buffered_body_bytes, limits.max_body_bytes) == (1 << 20, 1 << 20)


def test_a_detector_that_only_gates_the_queue_sets_no_limit_of_a_worker() -> None:
    translated = found(FLOW.replace(", {pluginRef: concurrency-detector}]}", "]}"))
    assert "max_requests_per_worker" not in translated.settings["limits"]
    assert any("max_requests be 10 for each worker" in one for one in said(translated, Became.NEAREST))
    tokens = found("plugins: [{type: concurrency-detector, parameters: {concurrencyMode: tokens}}]")
    assert any("maxTokenConcurrency" in one for one in said(tokens, Became.NOTHING))


def test_the_load_of_a_saturated_worker_is_that_of_the_detector(tmp_path: Path) -> None:
    given = "{queueDepthThreshold: 9, kvCacheUtilThreshold: 0.7}"
    picker = loaded(found(f"plugins: [{{type: utilization-detector, parameters: {given}}}]"), tmp_path).picker
    assert (picker.saturated_queued_requests, picker.saturated_kv_usage) == (9, 0.7)
    odd = found("plugins: [{type: utilization-detector, parameters: {kvCacheUtilThreshold: true}}]")
    assert "picker" not in odd.settings


@pytest.mark.parametrize(
    ("plugins", "rule", "params"),
    [
        (("prefix-cache-scorer 5",), "llmd_blend", {"prefix_weight": 5.0, "queue_weight": 0.0, "kv_weight": 0.0}),
        (("queue-scorer",), "llmd_blend", {"prefix_weight": 0.0, "queue_weight": 1.0, "kv_weight": 0.0}),
        (
            ("prefix-cache-scorer 2", "load-aware-scorer 1", "queue-scorer 1"),
            "llmd_blend",
            {"prefix_weight": 2.0, "queue_weight": 2.0, "kv_weight": 0.0},
        ),
        (("active-request-scorer",), "least_requests", None),
        (("running-requests-size-scorer 2", "load-aware-scorer"), "least_requests", None),
        (("token-load-scorer",), "lpwl", None),
        (("lmetric-scorer",), "lmetric", None),
        (("latency-scorer", "prefix-cache-scorer"), "marginal_cost", None),
        (("session-affinity-scorer 50", "queue-scorer 1"), "session_affinity", None),
        (
            ("session-affinity-scorer 1", "prefix-cache-scorer 3"),
            "llmd_blend",
            {"prefix_weight": 3.0, "queue_weight": 0.0, "kv_weight": 0.0},
        ),
        (("prefix-cache-affinity-filter", "token-load-scorer"), "llmd_sticky", None),
        (("random-picker", "queue-scorer 3"), "random", None),
        (("queue-scorer 0", "max-score-picker"), "random", None),
        (("my-scorer 3",), "random", None),
    ],
)
def test_a_profile_gets_the_nearest_rule(
    tmp_path: Path, plugins: tuple[str, ...], rule: str, params: dict[str, float] | None
) -> None:
    translated = found(profile(*plugins))
    policy = translated.settings["policy"]
    assert (policy["rule"], policy.get("params")) == (rule, params)
    assert loaded(translated, tmp_path).policy.rule == rule
    noted = {note.item.split()[-1] for note in translated.notes}
    assert {one.split()[0] for one in plugins if not one.endswith(" 0")} <= noted, "each plugin is mentioned"


def test_the_affinity_filter_brings_its_parameters(tmp_path: Path) -> None:
    text = """\
plugins:
- type: prefix-cache-affinity-filter
  parameters: {affinityThreshold: 0.9, maxTTFTPenaltyMs: 5000, peakPrefillThroughput: 9866, explorationProbability: 0.1}
- type: active-request-scorer
"""
    translated = found(text)
    expected = {"affinity_threshold": 0.9, "max_ttft_penalty_s": 5.0, "prefill_tokens_per_s": 9866.0}
    assert translated.settings["policy"] == {"rule": "llmd_sticky", "params": expected}
    assert any("explorationProbability" in one for one in said(translated, Became.NOTHING))
    assert any("active-request-scorer" in one for one in said(translated, Became.NEAREST))
    assert loaded(translated, tmp_path).policy.rule == "llmd_sticky"


@pytest.mark.parametrize("value", ["1.5", "-1", ".nan", "true", "'0.9'"])
def test_a_parameter_that_the_rule_does_not_take_is_left_out(tmp_path: Path, value: str) -> None:
    text = f"plugins: [{{type: prefix-cache-affinity-filter, parameters: {{affinityThreshold: {value}}}}}]"
    translated = found(text)
    assert any("affinityThreshold" in one for one in said(translated, Became.NOTHING))
    assert loaded(translated, tmp_path).policy.params == {}


def test_a_file_without_profiles_uses_all_plugins_and_an_empty_one_the_defaults() -> None:
    assert found("plugins: [{type: queue-scorer}]").settings["policy"]["params"]["queue_weight"] == 1.0
    expected = {"prefix_weight": 3.0, "queue_weight": 2.0, "kv_weight": 2.0}
    assert found("").settings["policy"] == {"rule": "llmd_blend", "params": expected}


def test_pulls_lists_and_replicas_are_mentioned(tmp_path: Path) -> None:
    text = """\
plugins:
- type: p2p-source-producer
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 3}}
dataLayer: {crossReplica: {syncInterval: 1s}}
"""
    translated = found(text)
    assert loaded(translated, tmp_path).handover.pulls == "offloading_peer"
    nearest = " ".join(said(translated, Became.NEAREST))
    assert "picker.endpoints" in nearest and "redis.url" in nearest


FURTHER = (
    *("prefix-cache-scorer", "queue-scorer", "token-load-scorer", "latency-scorer", "prefix-cache-affinity-filter"),
    *(
        "random-picker",
        "concurrency-detector",
        "utilization-detector",
        "p2p-source-producer",
        "disagg-profile-handler",
        "pd-profile-handler",
    ),
    *("precise-prefix-cache-producer", "file-discovery", "own"),
)
ANY_PLUGIN = st.sampled_from([*COUNTERPARTS, *OTHER_SCORERS, *FURTHER])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10**30) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=2),
    max_leaves=4,
)
KEYS = st.sampled_from(
    [
        "path",
        "deciders",
        "queueDepthThreshold",
        "kvCacheUtilThreshold",
        "kvEventsConfig",
        "maxConcurrency",
        "headroom",
        "affinityThreshold",
    ]
)


@st.composite
def files(draw: st.DrawFn) -> str:
    plugins: list[dict[str, Any]] = []
    for number, type_ in enumerate(draw(st.lists(ANY_PLUGIN, max_size=6))):
        name = f"{draw(st.text(max_size=6))}-{number}"
        plugins.append({"type": type_, "name": name, "parameters": draw(st.dictionaries(KEYS, ANYTHING, max_size=3))})
    uses = [{"pluginRef": one["name"], "weight": draw(st.floats(0, 100))} for one in plugins if draw(st.booleans())]
    flow = draw(st.dictionaries(st.sampled_from(["maxBytes", "maxRequests", "defaultRequestTTL"]), ANYTHING))
    document = {
        "apiVersion": draw(st.sampled_from(VERSIONS)),
        "kind": "EndpointPickerConfig",
        "featureGates": ["flowControl"],
        "plugins": plugins,
        "schedulingProfiles": [{"name": "default", "plugins": uses}],
        "flowControl": flow,
    }
    return yaml.safe_dump(document)


@given(text=files())
def test_every_page_is_a_settings_file(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    loaded(found(text), tmp_path_factory.mktemp("pages"))


def test_a_name_cannot_end_a_comment() -> None:
    translated = found(yaml.safe_dump({"plugins": [{"type": "own\u2028access_log: true\n\x85x: 1"}]}))
    page = page_of(translated, "epp.yaml\naccess_log: true")
    assert list(yaml.safe_load(page)) == ["policy"]
