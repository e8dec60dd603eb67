"""The policy that decides most like a scheduling profile, from its scorers with their weights, filter and picker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

from policies.parameters import PolicyError, converted
from policies.rules.llmd_sticky import LlmdStickyParams
from router.picker.translate.notes import Became, Note
from router.picker.translate.picker_config import DEFAULT_WEIGHT, Plugin, SchedulingProfile

AFFINITY = "prefix-cache-affinity-filter"
_PREFIX, _QUEUE, _KV, _REQUESTS, _TOKENS = "prefix", "queue", "kv", "requests", "tokens"
_SESSION, _LMETRIC, _LATENCY = "session", "lmetric", "latency"
PRECISE: Final = ("precise-prefix-cache-scorer", "precise-prefix-cache-producer")
"""Plugins that read the workers' KV events."""
_PARTS: Final[Mapping[str, str]] = {
    "prefix-cache-scorer": _PREFIX,
    "prefix-cache": _PREFIX,
    "precise-prefix-cache-scorer": _PREFIX,
    "queue-scorer": _QUEUE,
    "kv-cache-utilization-scorer": _KV,
    "kv-cache-scorer": _KV,
    "load-aware-scorer": _REQUESTS,
    "active-request-scorer": _REQUESTS,
    "running-requests-size-scorer": _REQUESTS,
    "token-load-scorer": _TOKENS,
    "session-affinity-scorer": _SESSION,
    "lmetric-scorer": _LMETRIC,
    "latency-scorer": _LATENCY,
}
"""What each scorer that has a counterpart looks at."""
_BLENDED: Final = {_PREFIX: "prefix_weight", _QUEUE: "queue_weight", _KV: "kv_weight"}
_AS_QUEUE: Final = (_REQUESTS, _TOKENS)
OTHER_SCORERS: Final[Mapping[str, tuple[Became, str]]] = {
    "lora-affinity-scorer": (Became.IMPLIED, "an adapter's requests go to workers that have it, or can load it"),
    "no-hit-lru-scorer": (Became.NEAREST, "ties go to the least recently used worker"),
    "context-length-aware": (Became.NOTHING, "a worker takes no range of lengths; `routes` can match prompt_tokens"),
    "topology-affinity-scorer": (Became.NOTHING, "topology changes no decision"),
    "header-label-affinity-scorer": (Became.NOTHING, "a header chooses a policy (`routes`), not a worker"),
    "endpoint-attribute-scorer": (Became.NOTHING, "a rule of your own can read labels and loads"),
    "mm-embeddings-cache-scorer": (Became.NOTHING, "there is no view of caches of image embeddings"),
}
_STICKY_PARAMETERS: Final = (
    ("affinityThreshold", "affinity_threshold", 1.0),
    ("maxTTFTPenaltyMs", "max_ttft_penalty_s", 0.001),
    ("peakPrefillThroughput", "prefill_tokens_per_s", 1.0),
)
"""Of the filter, of the rule, and the factor between them."""


@dataclass(frozen=True, slots=True)
class RuleChoice:
    """A policy, and what it is made of."""

    rule: str
    params: Mapping[str, Any]
    notes: tuple[Note, ...]


def is_scorer(type_: str) -> bool:
    return type_ in _PARTS or type_ in OTHER_SCORERS


def choose_rule(profile: SchedulingProfile) -> RuleChoice:
    scorers = [one for one in profile.plugins if one.type in _PARTS and _weight(one)]
    affinity = next((one for one in profile.plugins if one.type == AFFINITY), None)
    random = next((one for one in profile.plugins if one.type == "random-picker"), None)
    if random is not None:
        note = Note(Became.SETTING, random.item, "policy.rule random: scores do not count")
        return RuleChoice("random", {}, (note, *_unused(scorers, "the picker draws at random")))
    if affinity is not None:
        return _sticky(affinity, scorers)
    return _by_scorers(scorers)


def _sticky(affinity: Plugin, scorers: list[Plugin]) -> RuleChoice:
    params: dict[str, Any] = {}
    notes = [Note(Became.SETTING, affinity.item, "policy.rule llmd_sticky")]
    for theirs, ours, factor in _STICKY_PARAMETERS:
        value = affinity.of(theirs)
        if value is None:
            continue
        if _fits(ours, value, factor):
            params[ours] = round(value * factor, 9)
        else:
            notes.append(Note(Became.NOTHING, f"{affinity.item}: {theirs}", f"llmd_sticky does not take {value!r}"))
    known = {theirs for theirs, _, _ in _STICKY_PARAMETERS}
    notes += [
        Note(Became.NOTHING, f"{affinity.item}: {name}", "llmd_sticky has no such parameter")
        for name in affinity.parameters
        if name not in known
    ]
    for one in scorers:
        if _PARTS[one.type] == _TOKENS:
            notes.append(Note(Became.IMPLIED, one.item, "llmd_sticky counts tokens among the workers that remain"))
        else:
            notes.append(Note(Became.NEAREST, one.item, "llmd_sticky counts queued tokens instead"))
    return RuleChoice("llmd_sticky", params, tuple(notes))


def _fits(parameter: str, value: object, factor: float) -> bool:
    """Whether the rule takes a parameter of this value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        converted("llmd_sticky", "params", LlmdStickyParams, {parameter: round(value * factor, 9)})
    except (PolicyError, OverflowError):
        return False
    return isfinite(value)


def _by_scorers(scorers: list[Plugin]) -> RuleChoice:
    parts = {_PARTS[one.type] for one in scorers}
    if not scorers:
        note = Note(Became.SETTING, "no scorer with a counterpart", "policy.rule random, as all workers score alike")
        return RuleChoice("random", {}, (note,))
    for part, rule, words in (
        (_LATENCY, "marginal_cost", "it predicts times from speeds that it learns"),
        (_LMETRIC, "lmetric", "the same product of prefill work and requests"),
        (_SESSION, "session_affinity", "by consistent hashing of X-Session-Id, with a bound on load"),
    ):
        if part in parts and (part == _LATENCY or _leads(scorers, part)):
            became = Became.SETTING if part == _LMETRIC else Became.NEAREST
            return _single(scorers, part, rule, became, words)
    if parts == {_REQUESTS}:
        return _single(scorers, _REQUESTS, "least_requests", Became.SETTING, "fewest requests")
    if parts == {_TOKENS}:
        return _single(scorers, _TOKENS, "lpwl", Became.SETTING, "fewest tokens, queued and the request's own")
    return _blend(scorers)


def _single(scorers: list[Plugin], part: str, rule: str, became: Became, words: str) -> RuleChoice:
    used = [one for one in scorers if _PARTS[one.type] == part]
    notes = [Note(became, one.item, f"policy.rule {rule}: {words}") for one in used]
    return RuleChoice(
        rule, {}, (*notes, *_unused([one for one in scorers if one not in used], f"{rule} has no weights"))
    )


def _blend(scorers: list[Plugin]) -> RuleChoice:
    params = dict.fromkeys(_BLENDED.values(), 0.0)
    notes = []
    for one in scorers:
        part, weight = _PARTS[one.type], _weight(one)
        name = _BLENDED.get(_QUEUE if part in _AS_QUEUE else part)
        if name is None:
            notes.append(Note(Became.NOTHING, one.item, "llmd_blend has no such part"))
            continue
        params[name] += weight
        if part in _AS_QUEUE:
            text = f"policy.params.{name} {weight:g}: llmd_blend counts requests that wait for their prefill"
            notes.append(Note(Became.NEAREST, one.item, text))
        else:
            notes.append(Note(Became.SETTING, one.item, f"policy.params.{name} {weight:g}"))
    return RuleChoice("llmd_blend", params, tuple(notes))


def _leads(scorers: list[Plugin], part: str) -> bool:
    """Return whether the scorers of one part weigh at least as much as all others."""
    weights = [_weight(one) if _PARTS[one.type] == part else -_weight(one) for one in scorers]
    return sum(weights) >= 0


def _weight(plugin: Plugin) -> float:
    return DEFAULT_WEIGHT if plugin.weight is None else plugin.weight


def _unused(scorers: list[Plugin], why: str) -> Iterator[Note]:
    return (Note(Became.NOTHING, one.item, why) for one in scorers)
