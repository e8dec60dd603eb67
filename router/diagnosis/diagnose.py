"""The diagnosis of a period: findings, what was not seen enough, and the figures behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from router.config.model import DiagnosisConfig
from router.diagnosis import checks, evidence
from router.diagnosis.finding import Checked, Evidence, Finding, Unsure, worst_first
from router.diagnosis.in_force import InForce
from router.diagnosis.measured import MIN_REQUESTS, Measured
from router.metrics.catalogue import CATALOGUE
from router.metrics.instruments import Labels

_SLO_SHARE = 0.95
"""Share of a route's streams that should meet its service levels (`slo`)."""
CHECKS: tuple[Callable[[Measured, DiagnosisConfig, InForce], Checked], ...] = (
    checks.prefill_queueing,
    checks.decode_scheduling,
    checks.kv_capacity,
    checks.phase_interference,
    checks.prefix_reuse,
    checks.worker_roles,
)
SERVICE_LEVELS = "warmroute_service_level_requests"
_LEVEL_LABELS = next(spec.labels for spec in CATALOGUE if spec.name == SERVICE_LEVELS)


class ServiceLevel(msgspec.Struct, frozen=True):
    """How many of a route's streams met a target (ttft or tpot). `out`: fewer than 95 % of them did."""

    route: str
    target: str
    met: int
    missed: int
    out: bool


class Diagnosis(msgspec.Struct, frozen=True):
    """What hurts, over the last `seconds`. `figures` are tables of everything that the checks look at."""

    seconds: float
    requests: int
    findings: list[Finding]
    service_levels: list[ServiceLevel]
    unsure: list[Unsure]
    figures: list[Evidence]
    thresholds: DiagnosisConfig


def diagnose(
    measured: Measured, thresholds: DiagnosisConfig, in_force: InForce, conditions: Sequence[Finding] = ()
) -> Diagnosis:
    """Return the diagnosis of what was measured, with the findings of the conditions that hold, worst first."""
    checked = [check(measured, thresholds, in_force) for check in CHECKS]
    return Diagnosis(
        seconds=round(measured.seconds, 1),
        requests=measured.requests,
        findings=worst_first([*conditions, *(one for one in checked if isinstance(one, Finding))]),
        service_levels=_service_levels(measured, thresholds),
        unsure=[one for one in checked if isinstance(one, Unsure)],
        figures=[
            evidence.inputs(measured),
            evidence.outputs(measured),
            evidence.first_tokens(measured),
            evidence.gaps(measured),
            evidence.caches(measured),
            evidence.turns(measured),
            evidence.moves(measured),
        ],
        thresholds=thresholds,
    )


def levels_of(counted: Mapping[Labels, float]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the streams that met and missed each target, from the series of `SERVICE_LEVELS`."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for labels, number in counted.items():
        named = dict(zip(_LEVEL_LABELS, labels, strict=True))
        key = named["route"], named["target"]
        met, missed = found.get(key, (0, 0))
        found[key] = (met + int(number), missed) if named["met"] == "true" else (met, missed + int(number))
    return found


def _service_levels(measured: Measured, thresholds: DiagnosisConfig) -> list[ServiceLevel]:
    """Return the levels with requests. A target that few requests had is never out."""
    return [
        ServiceLevel(
            route,
            target,
            met,
            missed,
            out=met + missed >= MIN_REQUESTS and met < _SLO_SHARE * (met + missed),
        )
        for (route, target), (met, missed) in sorted(measured.levels.items())
        if met + missed
    ]
