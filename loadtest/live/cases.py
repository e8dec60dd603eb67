"""Named cases: a workload, a fleet and the rules to compare, with the question that they answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadtest.lab.cell import Slo

_SHARED_PROMPT = (
    "generator:multi_turn:rate_per_s=5,starts=96,history_s=0,systems=1,system_tokens=4400,low_turns=4,high_turns=4,"
    "question_p50_tokens=120,question_p90_tokens=300,answer_p50_tokens=48,answer_p90_tokens=48,pause_p50_s=1.5,pause_p90_s=4"
)
_SLO = Slo(2_000.0, 200.0)


@dataclass(frozen=True, slots=True)
class Usual:
    """Settings of the flags that the command line leaves out. `trace` and `policy` are empty where it must name them.

    `rate` None means that `load` counts.
    """

    trace: str = ""
    policy: tuple[str, ...] = ()
    load: float = 0.85
    rate: float | None = None
    seeds: int = 3
    window_s: float = 90.0
    warm_up_s: float = 20.0
    slo: Slo = _SLO
    workers: int = 4
    profile: str = "llama-3.1-70b-4xh100"
    kv_tokens: int | None = None
    time_scale: float = 1.0


CASES: Mapping[str, Usual] = {
    # 96 chats of four turns begin within 20 s over one system prompt. All turns are cached but for their question, so
    # prefills are shorter than the fixed part of a first token. Does the hold of longer prompts delay them?
    "shared-prompt-burst": Usual(
        trace=_SHARED_PROMPT,
        policy=("marginal_cost", "marginal_cost:hold=false"),
        rate=1.0,
        seeds=10,
        window_s=60.0,
        warm_up_s=0.0,
        profile="llama-3.1-8b-h100",
        kv_tokens=65_536,
        time_scale=4.0,
    ),
}
