"""The diagnosis of a running gateway."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from msgspec.structs import replace

from router.config.model import DiagnosisConfig
from router.diagnosis.diagnose import Diagnosis, diagnose
from router.diagnosis.facts import Facts
from router.diagnosis.finding import Finding, worst_first
from router.diagnosis.in_force import InForce
from router.diagnosis.measured import Measured
from router.diagnosis.standing import Holding, Standing
from router.telemetry.snapshot import Snapshot

WHICH_SHOWN: Final = 20
WHY_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a diagnosis is made from, over all processes."""

    metrics: Snapshot
    measured: Measured
    facts: Facts
    in_force: InForce
    thresholds: DiagnosisConfig

    def said(self, holding: Holding) -> Holding | None:
        """Return what holds without the workers that get no requests, if it says nothing of these; None if none is
        left."""
        if not holding.condition.of_ready:
            return holding
        left = [one for one in holding.subjects if not self.facts.is_out(one)]
        return dataclasses.replace(holding, subjects=left) if left else None


class Diagnoser:
    """Keeps since when each finding holds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._standing = Standing(clock)

    def diagnosis(self, inputs: Inputs) -> Diagnosis:
        self._standing.observe(inputs.metrics)
        holding = [one for one in map(inputs.said, self._standing.holding()) if one is not None]
        held = [_finding(one, inputs.facts, inputs.in_force) for one in holding]
        found = diagnose(inputs.measured, inputs.thresholds, inputs.in_force, held)
        since = self._standing.since(one.check for one in found.findings if one.since is None)
        own = [one if one.since else replace(one, since=_time(since[one.check])) for one in found.findings]
        return replace(found, findings=worst_first(own))


def _finding(holding: Holding, facts: Facts, in_force: InForce) -> Finding:
    condition = holding.condition
    shown = holding.subjects[:WHICH_SHOWN]
    whys = [why for one in (shown or [""]) if (why := condition.why(one, facts)) is not None]
    return Finding(
        check=condition.name,
        severity=condition.severity,
        symptom=condition.symptom,
        detail=" ".join(part for part in (condition.effect, condition.measured(holding.value)) if part),
        evidence=[],
        to_try=condition.remedies(in_force, facts),
        since=_time(holding.since_s),
        which=[*shown, *_more(len(holding.subjects) - len(shown))],
        why=[*whys[:WHY_SHOWN], *_more(len(whys) - WHY_SHOWN)],
    )


def _more(number: int) -> list[str]:
    return [f"and {number} more"] if number > 0 else []


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")
