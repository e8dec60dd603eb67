"""A condition: what is watched, how bad it is while it holds, and what to do. An alert and a finding come from one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from router.diagnosis.facts import Facts
from router.diagnosis.in_force import InForce
from router.diagnosis.signals import Expression


class Severity(StrEnum):
    """How bad a finding is, worst first. outage: requests fail. degraded: requests succeed, with less than the fleet
    could do, or something is about to fail. advice: something can be improved."""

    OUTAGE = "outage"
    DEGRADED = "degraded"
    ADVICE = "advice"


RANK = {severity: rank for rank, severity in enumerate(Severity)}
LABELS = {Severity.OUTAGE: "critical", Severity.DEGRADED: "warning", Severity.ADVICE: "info"}
"""The label `severity` of the alert."""


Why = Callable[[str, Facts], str | None]
"""Why the condition holds for a subject; None if that is not known."""
Remedies = Callable[[InForce, Facts], list[str]]
Unit = Literal["", "duration", "percentage"]


def fixed(*remedies: str) -> Remedies:
    """Return remedies that do not depend on the settings."""
    return lambda in_force, facts: list(remedies)


def unknown(subject: str, facts: Facts) -> str | None:
    """Return no reason."""
    return None


@dataclass(frozen=True, slots=True)
class Condition:
    """One row of the list.

    `summary` is the alert's, with labels in braces; `symptom` the finding's, which may have several subjects. `effect`
    says what clients notice. `measure` names the value in `unit`. The alert waits until the condition has held for
    `alert_after`, in the form of Prometheus; the finding for `finding_after_s`. A condition with `implied_by` is no
    finding of its own while that one holds.
    `of_ready`: it says nothing about workers that get no requests.
    """

    name: str
    severity: Severity
    group: str
    watched: Expression
    summary: str
    symptom: str
    effect: str
    remedies: Remedies
    why: Why = unknown
    measure: str = ""
    unit: Unit = ""
    alert_after: str = ""
    finding_after_s: float = 0.0
    implied_by: str | None = None
    finds: bool = True
    of_ready: bool = False

    @property
    def alert(self) -> str:
        return "Warmroute" + "".join(part.title() for part in self.name.split("_"))

    def rule(self) -> Mapping[str, object]:
        said = " ".join(part for part in (self.effect, _template(self.measure, self.unit)) if part)
        return {
            "alert": self.alert,
            "expr": self.watched.promql,
            **({"for": self.alert_after} if self.alert_after else {}),
            "labels": {"severity": LABELS[self.severity]},
            "annotations": {
                "summary": _template(self.summary),
                "description": said,
                "runbook_url": f"docs/how-to/operate.md#{self.alert.lower()}",
            },
        }

    def measured(self, value: float) -> str:
        """Return `measure` with the value; empty without one."""
        return self.measure.format(value=_SHOWN[self.unit](value)) if self.measure else ""


_SHOWN: Mapping[str, Callable[[float], str]] = {
    "": lambda value: f"{value:,.0f}",
    "duration": lambda value: f"{value:.3g} s",
    "percentage": lambda value: f"{100 * value:.3g} %",
}
_HUMAN = {"": "", "duration": " | humanizeDuration", "percentage": " | humanizePercentage"}


def _template(text: str, unit: Unit = "") -> str:
    text = text.replace("{value}", f"{{{{ $value{_HUMAN[unit]} }}}}")
    return re.sub(r"(?<!{){(\w+)}(?!})", r"{{ $labels.\1 }}", text)
