"""Multi-turn sessions get slower: their next turn does not find the earlier ones cached where it goes."""

from __future__ import annotations

from router.config.model import DiagnosisConfig
from router.diagnosis import evidence
from router.diagnosis.condition import Severity
from router.diagnosis.finding import Checked, Finding, Pressure, Unsure
from router.diagnosis.in_force import InForce
from router.diagnosis.measured import Measured, Moved

_REUSE_SHARE = 0.7
"""Share of a session's earlier prompts that the next turn should find cached."""
_CHANGED_SHARE = 0.2
"""Share of further turns that may go to another worker than the turn before."""


def check(measured: Measured, thresholds: DiagnosisConfig, in_force: InForce) -> Checked:
    """Find sessions that change workers and lose their cached prompts by it.

    A turn that moves because its worker had evicted the session, or is gone, loses nothing by the move.
    """
    further = measured.stayed + sum(measured.moved.values())
    moved = sum(measured.moved.get(why, 0) for why in (Moved.COST, Moved.NOT_KNOWN))
    if further < thresholds.min_requests:
        needs = f"{thresholds.min_requests} further turns of sessions; there were {further}"
        return Unsure(Pressure.PREFIX_REUSE, needs)
    earlier = sum(one.earlier_tokens for one in measured.turns)
    reused = sum(one.reused_tokens for one in measured.turns)
    if not earlier or reused >= _REUSE_SHARE * earlier or moved <= _CHANGED_SHARE * further:
        return None
    return Finding(
        Pressure.PREFIX_REUSE,
        Severity.ADVICE,
        "Sessions lose their cached prompts from turn to turn, because they change workers.",
        f"Further turns find {reused / earlier:.0%} of the earlier prompts cached, less than {_REUSE_SHARE:.0%}, and "
        f"{moved / further:.0%} of them leave a worker that had, or may have had, more of them cached: more than "
        f"{_CHANGED_SHARE:.0%}.",
        [evidence.turns(measured), evidence.moves(measured)],
        to_try(in_force),
    )


def to_try(in_force: InForce) -> list[str]:
    """Return what may help and is not in force."""
    remedies = [
        (
            not in_force.kv_events,
            "let the gateway subscribe to KV events (residency.kv_events: true), so that it knows what is cached",
        ),
        (
            not in_force.publishing,
            "switch on KV events (vLLM's --kv-events-config), so that the gateway knows what each worker has cached",
        ),
        (
            not in_force.counts_cached,
            f"use a policy that counts cached tokens, such as marginal_cost, in place of {in_force.rule}",
        ),
        (True, "let clients send a session id, and send the earlier turns unchanged at the start of the prompt"),
        (
            not (in_force.publishing or in_force.shared),
            "let gateways of the same workers share what they know (redis.url): each knows only its own requests",
        ),
    ]
    return [remedy for helps, remedy in remedies if helps]
