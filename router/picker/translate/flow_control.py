"""Flow control: the limits that exist here, and what has none."""

from __future__ import annotations

from typing import Any, Final

from router.config.model import LimitsConfig, PickerConfig
from router.picker.translate.notes import Became, Findings
from router.picker.translate.picker_config import IMPLIED_DETECTOR, PickerConfigFile, Plugin, SchedulingProfile
from router.picker.translate.quantities import seconds, whole

GATE: Final = "flowControl"
_DETECTOR: Final = "concurrency-detector"
_DEFAULT_CONCURRENCY: Final = 100
_DEFAULT_WAIT_S: Final = 60.0
_BANDS: Final = ("priorityBands", "defaultPriorityBand", "defaultNegativePriorityBand", "usageLimitPolicyPluginRef")
_NO_BANDS = "write `classes`: they order requests that wait by objective and tenant; a band does not say its objectives"
_FOR_LOAD = "requests wait here while no worker is ready; for load they wait in a route with `max_requests`"


def translate_flow_control(config: PickerConfigFile, found: Findings, profile: SchedulingProfile) -> None:
    """Translate the section, and detectors that filter workers in the `profile` that decides."""
    for plugin in config.plugins:
        if plugin.type == _DETECTOR:
            _concurrency(plugin, found, filters=plugin.name in {one.name for one in profile.plugins})
        elif plugin.type == IMPLIED_DETECTOR:
            _utilization(plugin, found)
    section = config.section(GATE)
    if not config.gates.get(GATE):
        if section is not None:
            found.note(Became.IMPLIED, GATE, "off, as featureGates does not have it: no request waits for load")
        return
    section = section if isinstance(section, dict) else {}
    found.note(Became.NEAREST, GATE, _FOR_LOAD)
    _queue(section, found)
    _wait(section, found)
    for key in _BANDS:
        if section.get(key):
            found.note(Became.NOTHING, f"{GATE}.{key}", _NO_BANDS)
    if section.get("enableEviction"):
        found.note(Became.NOTHING, f"{GATE}.enableEviction", "a request that has been placed runs to its end")


def _queue(section: dict[str, Any], found: Findings) -> None:
    item = f"{GATE}.maxRequests"
    if (requests := whole(section.get("maxRequests"))) is not None and requests > 0:
        found.set("limits.max_queued_requests", requests)
        found.note(Became.SETTING, item, "limits.max_queued_requests, of requests that wait for a worker")
    elif "maxRequests" in section:
        found.note(Became.NOTHING, item, "the queue always has a limit (limits.max_queued_requests)")
    item = f"{GATE}.maxBytes"
    if (size := whole(section.get("maxBytes"))) is not None and size > 0:
        found.set("limits.max_buffered_body_bytes", size)
        found.note(Became.SETTING, item, "limits.max_buffered_body_bytes, of bodies in memory")
        if size < LimitsConfig().max_body_bytes:
            found.set("limits.max_body_bytes", size)
            found.note(Became.SETTING, item, "limits.max_body_bytes, as one body cannot be larger than all")
    elif "maxBytes" in section:
        found.note(Became.NOTHING, item, "bodies in memory always have a limit (limits.max_buffered_body_bytes)")


def _wait(section: dict[str, Any], found: Findings) -> None:
    """Set the longest wait for a worker to be ready."""
    key = "noEndpointRequestTTL" if "noEndpointRequestTTL" in section else "defaultRequestTTL"
    wait_s = seconds(section[key]) if key in section else _DEFAULT_WAIT_S
    if not wait_s:
        found.note(Became.NOTHING, f"{GATE}.{key}", "a wait always has a limit (timeouts.queue_s)")
        return
    found.set("timeouts.queue_s", wait_s)
    item = f"{GATE}.{key}" + ("" if key in section else " (its default)")
    found.note(Became.SETTING, item, "timeouts.queue_s, while no worker is ready")
    if wait_s > PickerConfig().pick_s:
        found.set("picker.pick_s", wait_s)
        found.note(Became.SETTING, item, "picker.pick_s, which limits a pick with its wait, and also tokenising")
    if key == "noEndpointRequestTTL" and "defaultRequestTTL" in section:
        found.note(Became.NOTHING, f"{GATE}.defaultRequestTTL", "no request waits for the workers' load to fall")


def _concurrency(plugin: Plugin, found: Findings, *, filters: bool) -> None:
    """Set the limit of a worker if the detector leaves full workers out; as a gate of a queue it has no counterpart."""
    mode = plugin.of("concurrencyMode") or "requests"
    if mode in ("tokens", "hybrid"):
        found.note(Became.NOTHING, f"{plugin.item}: maxTokenConcurrency", "a worker has no limit of tokens")
    if mode == "tokens":
        return
    most, limit = _limits_of(plugin)
    if filters:
        found.set("limits.max_requests_per_worker", limit)
        text = "limits.max_requests_per_worker, with the headroom; a request beyond it on every worker gets 503"
        found.note(Became.SETTING, plugin.item, text)
    else:
        text = f"a queue for load is that of a route: let its max_requests be {most} for each worker"
        found.note(Became.NEAREST, plugin.item, text)


def _utilization(plugin: Plugin, found: Findings) -> None:
    """Set the load from which requests of a negative priority are refused."""
    text = "a worker beyond it is saturated; while all are, requests of a negative priority get 429"
    found.note(Became.SETTING, plugin.item, text)
    queued, used = whole(plugin.of("queueDepthThreshold")), plugin.of("kvCacheUtilThreshold")
    if queued is not None and queued >= 0:
        found.set("picker.saturated_queued_requests", queued)
    if not isinstance(used, bool) and isinstance(used, int | float) and 0 < used <= 1:
        found.set("picker.saturated_kv_usage", float(used))


def _limits_of(plugin: Plugin) -> tuple[int, int]:
    """Return the requests at which a worker is full, and those at which it is left out."""
    most, headroom = plugin.of("maxConcurrency"), plugin.of("headroom")
    full = most if isinstance(most, int) and most > 0 else _DEFAULT_CONCURRENCY
    share = headroom if isinstance(headroom, int | float) and 0 < headroom < 1e6 else 0.0
    return full, int(full * (1.0 + share))
