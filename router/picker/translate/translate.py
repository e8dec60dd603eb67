"""Translate an `EndpointPickerConfig` to settings, and name what has none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from router.picker.translate.counterparts import COUNTERPARTS, UNKNOWN
from router.picker.translate.flow_control import translate_flow_control
from router.picker.translate.notes import Became, Findings
from router.picker.translate.picker_config import IMPLIED_DETECTOR, PickerConfigFile, Plugin, SchedulingProfile
from router.picker.translate.rules import AFFINITY, OTHER_SCORERS, PRECISE, choose_rule, is_scorer

_DISAGGREGATED: Final = ("disagg-profile-handler", "pd-profile-handler")
_DECIDERS: Final = ("prefix-based-pd-decider", "always-disagg-pd-decider")
_FILE, _PULLS, _RANDOM, _DETECTOR = "file-discovery", "p2p-source-producer", "random-picker", "concurrency-detector"
_ELSEWHERE: Final = (
    *(*_DISAGGREGATED, *_DECIDERS, *PRECISE),
    *(_FILE, _PULLS, _RANDOM, _DETECTOR, IMPLIED_DETECTOR, AFFINITY),
)
"""Types with more to them than a line in the table."""
_EVENTS_PORT: Final = 5557
_SIDECAR = "a worker behind llm-d's sidecar needs the label kv_sidecar: llm-d (`discovery.sources.NAME.defaults`)"


def translate(config: PickerConfigFile) -> Findings:
    found = Findings()
    _policy(config, found)
    _handover(config, found)
    _prompts(config, found)
    _pulls(config, found)
    _workers(config, found)
    translate_flow_control(config, found, _deciding(config))
    _plugins(config, found)
    _sections(config, found)
    return found


def _policy(config: PickerConfigFile, found: Findings) -> None:
    profile = _deciding(config)
    choice = choose_rule(profile)
    found.set("policy.rule", choice.rule)
    if choice.params:
        found.set("policy.params", dict(choice.params))
    if config.assumed:
        words = "all plugins" if config.plugins else "as without a file: queue 2, kv 2, prefix 3"
        found.note(Became.IMPLIED, "no schedulingProfiles", f"one profile with {words}")
    found.notes.extend(choice.notes)
    for other in config.profiles:
        if other is not profile:
            text = "one policy decides; `policies` and `routes` can give requests another"
            found.note(Became.NOTHING, f"the profile {other.name}", _prefill_words(config, other) or text)


def _deciding(config: PickerConfigFile) -> SchedulingProfile:
    """Return the profile that chooses the worker that answers."""
    handler = _first(config, _DISAGGREGATED)
    named = {profile.name: profile for profile in config.profiles}
    wanted = None if handler is None else _profile_name(handler, "decode")
    return named.get(wanted or "default", config.profiles[0])


def _profile_name(handler: Plugin, stage: str) -> str:
    return str(handler.of(f"profiles.{stage}") or handler.of(f"{stage}SchedulingProfile") or stage)


def _prefill_words(config: PickerConfigFile, profile: SchedulingProfile) -> str | None:
    handler = _first(config, _DISAGGREGATED)
    if handler is None or profile.name != _profile_name(handler, "prefill"):
        return None
    return "a pair of workers is chosen by its cost in seconds, without weights"


def _handover(config: PickerConfigFile, found: Findings) -> None:
    handler = _first(config, _DISAGGREGATED)
    if handler is None:
        return
    decider = handler.of("deciders.prefill") or handler.of("deciderPluginName")
    if decider is None and handler.type == "disagg-profile-handler":
        found.note(Became.IMPLIED, handler.item, "without a decider for prefill there are no pairs")
        return
    found.set("handover.connector", "nixl_pull")
    found.note(Became.SETTING, handler.item, "handover.connector, with the roles prefill and decode of workers")
    text = "nixl_pull is assumed, vLLM's NixlConnector; write the connector that your workers run"
    found.note(Became.NEAREST, f"{handler.item}: the KV connector", text)
    found.note(Became.NEAREST, f"{handler.item}: the sidecar", _SIDECAR)
    for plugin in _all(config, _DECIDERS):
        text = "a pair is used where it costs less time than one worker, without a threshold"
        found.note(Became.NEAREST, plugin.item, text)
    if handler.of("deciders.encode") is not None:
        found.note(Became.NOTHING, f"{handler.item}: deciders.encode", "there is no separate encode stage")


def _prompts(config: PickerConfigFile, found: Findings) -> None:
    for plugin in _all(config, PRECISE):
        found.set("residency.kv_events", True)
        found.note(Became.SETTING, plugin.item, "residency.kv_events: an exact view from each worker's KV events")
        _events(plugin, found)


def _pulls(config: PickerConfigFile, found: Findings) -> None:
    for plugin in _all(config, (_PULLS,)):
        found.set("handover.pulls", "offloading_peer")
        found.note(
            Became.SETTING, plugin.item, "handover.pulls, where a pull costs less time than to compute the prompt"
        )


def _events(plugin: Plugin, found: Findings) -> None:
    port = _events_port(plugin)
    item = f"{plugin.item}: kvEventsConfig"
    if plugin.of("kvEventsConfig.zmqEndpoint") is not None and not plugin.of("kvEventsConfig.discoverPods"):
        text = "workers connect to no picker here: let each bind its own port (tcp://*:5557 in --kv-events-config)"
        found.note(Became.NOTHING, f"{item}.zmqEndpoint", text)
    if port is not None:
        text = f"port {port} is the field kv-events-port of a worker that does not list its KV events itself"
        found.note(Became.NEAREST, item, text)
    for key in ("tokenProcessorConfig", "indexerConfig", "speculativeIndexing"):
        if plugin.of(key) is not None:
            text = "block sizes and hashes are those of the workers, and requests on their way are counted"
            found.note(Became.IMPLIED, f"{plugin.item}: {key}", text)


def _events_port(plugin: Plugin) -> int | None:
    if not plugin.of("kvEventsConfig.discoverPods"):
        return None
    port = plugin.of("kvEventsConfig.podDiscoveryConfig.socketPort")
    return port if isinstance(port, int) and 0 < port <= 65_535 else _EVENTS_PORT


def _workers(config: PickerConfigFile, found: Findings) -> None:
    reference = config.section("dataLayer.discovery.pluginRef") or config.section(
        "dataLayer.discovery.endpoints.pluginRef"
    )
    plugin = config.plugin(reference)
    path = None if plugin is None else plugin.of("path")
    if plugin is None or plugin.type != _FILE or not isinstance(path, str) or not path:
        text = "the InferencePool of --pool-name; or write a source in `discovery.sources`"
        found.note(Became.IMPLIED, "workers", text)
        return
    source: dict[str, Any] = {"file": path}
    if defaults := _common_fields(config, found):
        source["defaults"] = defaults
    found.set("discovery.sources.endpoints", source)
    found.note(Became.SETTING, plugin.item, "discovery.sources: the same file, in the same format")
    if not plugin.of("watchFile"):
        found.note(Became.NEAREST, f"{plugin.item}: watchFile", "the file is read again whenever it changes")


def _common_fields(config: PickerConfigFile, found: Findings) -> dict[str, str]:
    """Return what all workers of the file have in common."""
    fields = {}
    for plugin in _all(config, PRECISE):
        if (port := _events_port(plugin)) is not None:
            fields["kv-events-port"] = str(port)
    if "connector" in found.settings.get("handover", {}):
        fields["label.kv_sidecar"] = "llm-d"
    return fields


def _plugins(config: PickerConfigFile, found: Findings) -> None:
    """Note each plugin that has only a line in the table."""
    used = {one.name for one in _deciding(config).plugins}
    for plugin in config.plugins:
        if plugin.type in OTHER_SCORERS:
            found.note(*_placed(OTHER_SCORERS[plugin.type], plugin))
        elif is_scorer(plugin.type) or plugin.type in (AFFINITY, _RANDOM):
            if plugin.name not in used:
                found.note(Became.NOTHING, plugin.item, "not in the profile that decides")
        elif plugin.type not in _ELSEWHERE:
            found.note(*_placed(COUNTERPARTS.get(plugin.type, UNKNOWN), plugin))
        if plugin.of("maxNumOfEndpoints") not in (None, 1):
            text = "a list of endpoints is `picker.endpoints`"
            found.note(Became.NEAREST, f"{plugin.item}: maxNumOfEndpoints", text)


def _placed(counterpart: tuple[Became, str], plugin: Plugin) -> tuple[Became, str, str]:
    became, text = counterpart
    return became, plugin.item, text


def _sections(config: PickerConfigFile, found: Findings) -> None:
    for gate, on in config.gates.items():
        if gate != "flowControl":
            found.note(Became.NOTHING, f"featureGates {gate}={str(on).lower()}", "there is no such switch")
    shared = ("crossReplicaSyncerPluginRef", "crossReplica", "peerDiscovery")
    if any(config.section(f"dataLayer.{key}") is not None for key in shared):
        text = "set redis.url, and the pickers of a fleet share their load through it"
        found.note(Became.NEAREST, "dataLayer: replicas", text)


def _first(config: PickerConfigFile, types: Iterable[str]) -> Plugin | None:
    return next(iter(_all(config, types)), None)


def _all(config: PickerConfigFile, types: Iterable[str]) -> list[Plugin]:
    return [plugin for plugin in config.plugins if plugin.type in types]
