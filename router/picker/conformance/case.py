"""What a case is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from router.picker.conformance.bench import Bench
from router.picker.conformance.fixture import CaseProfile, Given
from router.picker.conformance.hook import HookAction
from router.picker.conformance.outcome import Requirement, Verdict

Check = Callable[[Bench], Awaitable[str | None]]
"""Returns what is worth reporting of a pass, and raises `CaseFailed` or `CaseSkipped`."""


@dataclass(frozen=True, slots=True)
class ConformanceCase:
    number: int
    title: str
    """What a picker that passes does, as a sentence."""
    reference: str
    """P, X, A, H or L (`REFERENCES`), or an issue."""
    requirement: Requirement
    profile: CaseProfile
    check: Check
    endpoints: int = 0
    """How many endpoints the suite must know."""
    actions: tuple[HookAction, ...] = ()
    """What the hook must offer."""
    given: tuple[Given, ...] = ()
    """Further options that the case needs."""
    last: bool = False
    """The picker is of no use afterwards."""


@dataclass(frozen=True, slots=True)
class CaseGroup:
    letter: str
    title: str
    cases: tuple[ConformanceCase, ...]


@dataclass(frozen=True, slots=True)
class CaseResult:
    id: str
    case: ConformanceCase
    verdict: Verdict
    detail: str
    duration_ms: float


REFERENCES = {
    "P": "Endpoint picker protocol 1.0 of the Gateway API Inference Extension (GAIE), proposal 004",
    "X": "Envoy's ext_proc v3 protocol",
    "A": "InferencePool v1",
    "H": "gRPC health checking",
    "L": "llm-d-router",
}
