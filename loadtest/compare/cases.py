"""Named cases: a workload, a fleet and the contenders, with the question that they answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadtest.lab.cell import Slo

_SLO = Slo(2_000.0, 200.0)
_GROUPS = (
    "generator:multi_turn:rate_per_s={},starts=48,history_s=0,systems={},system_tokens=4400,low_turns=4,high_turns=4,"
    "question_p50_tokens=130,question_p90_tokens=200,answer_p50_tokens=48,answer_p90_tokens=48,pause_p50_s=1.4,"
    "pause_p90_s=4.6"
)


@dataclass(frozen=True, slots=True)
class Usual:
    """Settings of the flags that the command line leaves out. `trace` and `policy` are empty where it must name them.

    `rate` None means that `load` counts.
    """

    trace: str = ""
    policy: tuple[str, ...] = ()
    peer: tuple[str, ...] = ()
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


def _case(trace: str, policy: tuple[str, ...], peer: tuple[str, ...] = (), seeds: int = 3) -> Usual:
    return Usual(trace, policy, peer, 0.85, 1.0, seeds, 60.0, 0.0, _SLO, 4, "llama-3.1-8b-h100", 65_536, 4.0)


CASES: Mapping[str, Usual] = {
    # 96 chats of four turns begin within 20 s over one system prompt. All turns are cached but for their question, so
    # prefills are shorter than the fixed part of a first token. Does the hold of longer prompts delay them?
    "shared-prompt-burst": _case(
        "generator:multi_turn:rate_per_s=5,starts=96,history_s=0,systems=1,system_tokens=4400,low_turns=4,high_turns=4,"
        "question_p50_tokens=120,question_p90_tokens=300,answer_p50_tokens=48,answer_p90_tokens=48,pause_p50_s=1.5,"
        "pause_p90_s=4",
        ("marginal_cost", "marginal_cost:hold=false"),
        seeds=10,
    ),
    # 48 conversations of four turns over system prompts of 4,400 tokens: do routers find them, and spread the load?
    "twelve-groups": _case(
        _GROUPS.format(2, 12),
        ("marginal_cost", "round_robin"),
        ("sglang-router:cache_aware", "vllm-router:cache_aware", "vllm-router:kv_aware"),
    ),
    "one-group": _case(_GROUPS.format(4, 1), ("marginal_cost", "round_robin"), ("sglang-router:cache_aware",), seeds=2),
}
