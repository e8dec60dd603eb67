"""Measured steps, and the engine model's costs that fit them.

A prefill reading is one prompt alone; it may take several steps, one per chunk. A decode reading is the mean of steps
in which the same sequences run. A mixed reading is one step with a chunk beside decodes. Mixed steps are not fitted:
the model has no constant of their own, so that their error says how good the model is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from backends.engine.profile import DecodeCost, PrefillCost
from backends.engine.timing import attended_pairs
from loadtest.calibrate.least_squares import Floats, fit_relative, relative_r2

LEAST_R2 = 0.95
MIXED_LIMIT = 0.10
"""Relative error of mixed steps above which a report warns."""


class CalibrationError(RuntimeError):
    """No profile can be made; the message says why and what to do."""


class Kind(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Reading:
    """`steps` steps that took `ms` together, with `new_tokens` of prompts and `attended_pairs` of them, or one step of
    `decodes` sequences with `context_tokens` together."""

    kind: Kind
    what: str
    ms: float
    steps: int = 1
    new_tokens: int = 0
    attended_pairs: float = 0.0
    decodes: int = 0
    context_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class Residual:
    reading: Reading
    modelled_ms: float

    @property
    def error(self) -> float:
        """Relative: 0.05 if the model is 5 % slower than what was measured."""
        return self.modelled_ms / self.reading.ms - 1.0


@dataclass(frozen=True, slots=True)
class FittedCosts:
    """`r2` is relative, by kind (`least_squares.relative_r2`)."""

    prefill: PrefillCost
    decode: DecodeCost
    residuals: tuple[Residual, ...]
    r2: dict[Kind, float]

    def worst(self, kind: Kind) -> float:
        return max((abs(one.error) for one in self.residuals if one.reading.kind is kind), default=0.0)

    def mean(self, kind: Kind) -> float:
        errors = [abs(one.error) for one in self.residuals if one.reading.kind is kind]
        return sum(errors) / len(errors) if errors else 0.0


def prefill_reading(ms: float, new_tokens: int, cached_tokens: int, budget_tokens: int) -> Reading:
    """Return the reading of one prompt alone, whose chunks have at most `budget_tokens`."""
    chunks = chunk(new_tokens, cached_tokens, budget_tokens)
    what = f"{new_tokens:,} new tokens" + (f", {cached_tokens:,} cached" if cached_tokens else "")
    return Reading(Kind.PREFILL, what, ms, len(chunks), new_tokens, attended_pairs(chunks))


def chunk(new_tokens: int, cached_tokens: int, budget_tokens: int) -> list[tuple[int, int]]:
    """Return the chunks of a prompt alone, as (new, cached) tokens."""
    starts = range(0, new_tokens, budget_tokens)
    return [(min(budget_tokens, new_tokens - start), cached_tokens + start) for start in starts]


def step_ms(reading: Reading, prefill: PrefillCost, decode: DecodeCost) -> float:
    """Return what the engine model says (`backends.engine.timing`)."""
    ms = 0.0
    if reading.new_tokens:
        fixed_ms = 0.0 if reading.decodes else reading.steps * prefill.a_ms
        ms += fixed_ms + prefill.b_us * 1e-3 * reading.new_tokens + prefill.d_ns * 1e-6 * reading.attended_pairs
    if reading.decodes:
        ms += decode.fixed_ms(reading.decodes) + decode.k_ns * 1e-6 * reading.context_tokens
    return ms


def fit_costs(readings: Sequence[Reading], by_batch: bool = False) -> FittedCosts:
    """Fit prefill and decode steps by relative least squares. `by_batch` gives each measured batch a cost of its own,
    for a mixture of experts; it needs readings of a batch with several contexts.

    Raises:
        CalibrationError: a fit explains too little of what was measured.
    """
    prefills, decodes = ([one for one in readings if one.kind is kind] for kind in (Kind.PREFILL, Kind.DECODE))
    prefill, decode = PrefillCost(*_solve(prefills)), DecodeCost(*_solve(decodes))
    if by_batch:
        decode = _by_batch(decodes, decode)
    return checked(judged(readings, prefill, decode))


def judged(readings: Iterable[Reading], prefill: PrefillCost, decode: DecodeCost) -> FittedCosts:
    residuals = tuple(Residual(one, step_ms(one, prefill, decode)) for one in readings)
    r2 = {kind: _r2([one for one in residuals if one.reading.kind is kind]) for kind in (Kind.PREFILL, Kind.DECODE)}
    return FittedCosts(prefill, decode, residuals, r2)


def checked(fitted: FittedCosts) -> FittedCosts:
    for kind, r2 in fitted.r2.items():
        if r2 < LEAST_R2:
            raise CalibrationError(
                f"the {kind} steps do not follow the model: r2 is {r2:.3f}, below {LEAST_R2}\n{table(fitted)}\n"
                "Does something else use the GPU, or do its clocks change? A mixture of experts has no linear decode."
            )
    return fitted


def scaled(fitted: FittedCosts, readings: Sequence[Reading]) -> FittedCosts:
    """Return the costs as a factor of `fitted` and a fixed part per step that fit `readings` of each kind best.

    For costs of kernels alone, beside a few readings of an engine that has a scheduler and kernels of its own.
    """
    prefill = fitted.prefill.scaled(*_factor(fitted, [one for one in readings if one.kind is Kind.PREFILL]))
    decode = fitted.decode.scaled(*_factor(fitted, [one for one in readings if one.kind is Kind.DECODE]))
    return judged(readings, prefill, decode)


def table(fitted: FittedCosts) -> str:
    lines = [f"{'step':<44}{'measured ms':>12}{'model ms':>12}{'error':>9}"]
    for one in fitted.residuals:
        what = f"{one.reading.kind}: {one.reading.what}"
        lines.append(f"{what:<44}{one.reading.ms:>12.2f}{one.modelled_ms:>12.2f}{one.error:>+9.1%}")
    lines += [f"{kind}: r2 {r2:.4f}, error mean {fitted.mean(kind):.1%}" for kind, r2 in fitted.r2.items()]
    if (worst := fitted.worst(Kind.MIXED)) > MIXED_LIMIT:
        lines.append(
            f"warning: mixed steps are up to {worst:.0%} off; expect that error where prompts run beside decodes"
        )
    return "\n".join(lines)


def _factor(fitted: FittedCosts, readings: Sequence[Reading]) -> tuple[float, float]:
    if not readings:
        return 1.0, 0.0
    rows = [(step_ms(one, fitted.prefill, fitted.decode), float(one.steps)) for one in readings]
    factor, fixed_ms = fit_relative(np.array(rows), _observed(readings))
    return float(factor), float(fixed_ms)


def _solve(readings: Sequence[Reading]) -> tuple[float, float, float]:
    if len(readings) < 3:
        raise CalibrationError(f"{len(readings)} readings cannot give three constants")
    first, second, third = fit_relative(np.array([_features(one) for one in readings]), _observed(readings))
    return float(first), float(second), float(third)


def _by_batch(readings: Sequence[Reading], line: DecodeCost) -> DecodeCost:
    batches = sorted({one.decodes for one in readings})
    rows = [[float(one.decodes == batch) for batch in batches] + [one.context_tokens * 1e-6] for one in readings]
    *points, k_ns = (float(value) for value in fit_relative(np.array(rows), _observed(readings)))
    return DecodeCost(line.a_ms, line.b_ms, k_ns, tuple(zip(batches, points, strict=True)))


def _features(one: Reading) -> tuple[float, float, float]:
    if one.kind is Kind.PREFILL:
        return float(one.steps), one.new_tokens * 1e-3, one.attended_pairs * 1e-6
    return 1.0, float(one.decodes), one.context_tokens * 1e-6


def _observed(readings: Sequence[Reading]) -> Floats:
    return np.array([one.ms for one in readings])


def _r2(residuals: Sequence[Residual]) -> float:
    if not residuals:
        return 1.0
    return relative_r2(_observed([one.reading for one in residuals]), np.array([one.modelled_ms for one in residuals]))
