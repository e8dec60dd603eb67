"""The costs of `policies.handover_cost` by term, for those who want to know why. The terms of a cost add up to it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from policies.handover_cost import MOST_OFF, STREAM_WEIGHT, stalled_s
from policies.view import FleetView

TERMS: Mapping[str, str] = MappingProxyType(
    {
        "queue_wait_s": "Wait for the prefills before this one.",
        "prefill_s": "Own prefill, divided by the worker's free share of time.",
        "estimate_s": "Standard error of both, at most half of them, taken off: who gets no prompts learns nothing.",
        "transfer_s": "Time in which the KV cache moves.",
        "decode_queue_s": "Time that the decode worker's queue lasts beyond the transfer.",
        "kv_wait_s": "Wait for KV space.",
        "stalled_s": "What the prefill costs the streams on its worker, weighted.",
        "decode_externality_s": "What the answer and the other streams cost each other, weighted.",
    }
)


def alone_terms(fleet: FleetView, place: int) -> dict[str, float]:
    return {
        **_first_token(fleet, place),
        "kv_wait_s": float(fleet.kv_wait_s[place]),
        "stalled_s": float(stalled_s(fleet)[place]),
        "decode_externality_s": STREAM_WEIGHT * float(fleet.decode_externality_s[place]),
    }


def pair_terms(
    prefill: FleetView, decode: FleetView, row: int, column: int, moved_s: float, *, streams: bool = False
) -> dict[str, float]:
    """Return the terms of `handover_cost.pair_s` for the prefill worker at `row` and the decode worker at `column`.

    `moved_s` is the time of the transfer. With `streams` the prefill worker has streams of its own, which wait.
    """
    first = _first_token(prefill, row)
    loaded_s = sum(first.values()) + moved_s
    return {
        **first,
        "transfer_s": moved_s,
        "decode_queue_s": max(0.0, float(decode.queue_wait_s[column]) - loaded_s),
        "kv_wait_s": float(decode.kv_wait_s[column]),
        **({"stalled_s": float(stalled_s(prefill)[row])} if streams else {}),
        "decode_externality_s": STREAM_WEIGHT * float(decode.decode_externality_s[column]),
    }


def _first_token(fleet: FleetView, place: int) -> dict[str, float]:
    wait_s = float(fleet.queue_wait_s[place])
    own_s = float(fleet.prefill_s[place]) / (1.0 - float(fleet.utilisation[place]))
    off_s = min(float(fleet.error_s[place]), MOST_OFF * (wait_s + own_s))
    return {"queue_wait_s": wait_s, "prefill_s": own_s, "estimate_s": -off_s}
