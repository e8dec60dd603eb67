"""The contests: six workloads, each on a fleet of its own, and the extent of a tournament."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loadtest.lab.cell import Fleet, Setting, Slo
from loadtest.lab.models import Models
from loadtest.tournament.study import ENOUGH_SEEDS, Extent, Study
from loadtest.workload.source import GENERATOR
from policies.registry import BUILT_IN

WARM_UP_SHARE = 0.2
"""Share of the window that is warm-up: the lab's 240 s of 1200."""

SLOS = {"llama-3.1-8b": Slo(2_000.0, 100.0), "llama-3.1-70b": Slo(2_000.0, 200.0)}
"""By model size, from MLPerf Inference's server scenario: Llama-3.1-8B 2000/100 ms, Llama-2-70B 2000/200 ms."""


@dataclass(frozen=True, slots=True)
class Contest:
    """One workload. `trace` is a generator, or the start of a file name in ``--traces``.

    `block_tokens` is the size of a KV block, None for the trace's own.
    """

    name: str
    title: str
    trace: str
    fleet: Fleet
    block_tokens: int | None

    @property
    def slo(self) -> Slo:
        """The service level of the profile's model."""
        return next(slo for model, slo in SLOS.items() if self.fleet.profile.startswith(model))

    @property
    def recorded(self) -> bool:
        return not self.trace.startswith(GENERATOR)

    def source(self, traces: Path | None) -> str | None:
        """Return the lab's trace; None if the file is missing."""
        if not self.recorded:
            return self.trace
        found = sorted(traces.glob(f"{self.trace}*")) if traces is not None else []
        return str(found[0]) if found else None

    def study(self, source: str, extent: Extent) -> Study:
        models = Models(block_tokens=self.block_tokens, warm_up_s=WARM_UP_SHARE * extent.window_s)
        return Study(self.name, self.title, source, Setting(self.fleet, self.slo, models, extent.window_s), extent)


_EIGHT = Fleet(8, "llama-3.1-8b-h100")
_FOUR = Fleet(4, "llama-3.1-8b-h100")
_LARGE = Fleet(4, "llama-3.1-70b-4xh100")

# The trace runs on four workers. More workers would replay it faster, so that its window would last less time: with
# eight, a queue has no time to settle.
#
# Each generator's rate is near its load 1.0, so that the bisection begins near its end and the first cell costs about
# as much as a mean one. Prompts are longer than the generators' defaults if the defaults would make tens of calls a
# second. Twenty minutes of such traffic take minutes to compute, fifty times for each rule.
CONTESTS = (
    Contest("conversation", "conversation trace", "conversation_trace.jsonl", _FOUR, None),
    Contest("agents", "agents", "generator:agents:rate_per_s=0.09", _EIGHT, 256),
    Contest(
        "hot_prompt",
        "hot prompt",
        "generator:hot_prompt:rate_per_s=5,system_tokens=16000,question_p50_tokens=2000,question_p90_tokens=8000",
        _LARGE,
        256,
    ),
    Contest(
        "shared_prefixes",
        "shared prefixes",
        "generator:shared_prefixes:rate_per_s=4,low_prefix_tokens=8000,high_prefix_tokens=24000,"
        "question_p50_tokens=2000,question_p90_tokens=8000",
        _LARGE,
        256,
    ),
    Contest(
        "documents_beside_chats",
        "documents beside chats",
        "generator:documents_beside_chats:rate_per_s=0.9,upload_share=0.2",
        _LARGE,
        128,
    ),
    Contest(
        "no_reuse",
        "no reuse",
        "generator:no_reuse:rate_per_s=5,prompt_p50_tokens=4000,prompt_p90_tokens=16000",
        _LARGE,
        512,
    ),
)


FULL = Extent(tuple(BUILT_IN), (0.3, 0.6, 0.8, 0.95, 1.05), ENOUGH_SEEDS, 1_200.0)
QUICK = Extent(FULL.policies, (0.6, 0.95), 3, 300.0)
"""Shows which rule leads, and is too small to publish."""
