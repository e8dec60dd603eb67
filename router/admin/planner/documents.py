"""The JSON of the planner."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from router.admin.documents import Body, Shape

_Limit = Annotated[float, Meta(gt=0)]


class PlanCandidate(Body):
    """A kind of worker: an engine profile of the package, or the path of a .toml file of `warmroute calibrate` on the
    gateway's machine; its price per hour, and how many there may be."""

    profile: str
    price_per_hour: _Limit | None = None
    most: Annotated[int, Meta(ge=1, le=1_024)] = 64


class PlanQuestion(Body):
    """What to plan for: limits of each call in ms, of which one is needed, and the share of all calls that must meet
    them. `growth`: arrivals come so many times as fast.

    `policies` are rules as in the `--policy` of `warmroute plan`; the first one is yours. Default: the policy in force
    and round_robin. `window_s` is the busiest part of the hour on which sizes are searched. Each of the two
    processes of a run has `cpu_s` of CPU time, and the run four times as long.
    """

    candidates: Annotated[list[PlanCandidate], Meta(min_length=1, max_length=8)]
    ttft_ms: _Limit | None = None
    tpot_ms: _Limit | None = None
    e2el_ms: _Limit | None = None
    attainment: Annotated[float, Meta(gt=0, lt=1)] = 0.95
    growth: _Limit = 1.0
    policies: tuple[str, ...] = ()
    window_s: Annotated[float, Meta(ge=10, le=3_600)] = 300.0
    cpu_s: Annotated[int, Meta(ge=10, le=3_600)] = 300


class PlannerDocument(Shape):
    """The latest run. `none`: there was none since the gateway's start. `done`: `plan` is what the `--json` of
    `warmroute plan` writes, and `workers` its answer: null if no candidate holds. `failed`: `problem` says why.

    `started_at` and `ended_at` are Unix times, `age_s` is the time since the end. `cpu_s` is the CPU time used.
    `unknown` are the things that the gateway does not know, and what the plan takes in their place.
    """

    state: Literal["none", "running", "done", "failed"]
    question: PlanQuestion | None = None
    started_at: float | None = None
    ended_at: float | None = None
    age_s: float | None = None
    cpu_s: float | None = None
    workers: int | None = None
    plan: dict[str, Any] | None = None
    problem: str | None = None
    unknown: tuple[str, ...] = ()
