"""The tournament's six workloads and the four of docs/results/held-out.md, in short windows at fixed rates.

Rates are fixed here, and not found by bisection, so that other code meets the same traffic.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loadtest.lab.cell import Cell, Fleet, Setting, Slo
from loadtest.lab.models import Models
from loadtest.tournament.contests import CONTESTS, WARM_UP_SHARE
from loadtest.workload.source import GENERATOR

LOADS = (0.6, 0.95)
PACES = {
    "conversation": (1.756, 300.0),
    "agents": (0.907, 300.0),
    "hot_prompt": (0.927, 200.0),
    "shared_prefixes": (0.968, 200.0),
    "documents_beside_chats": (1.164, 200.0),
    "no_reuse": (1.022, 200.0),
}
"""Load 1.0 of the tournament's workloads as a factor on their own rates, about, and the window in seconds."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload on its fleet. `rate` is load 1.0, about, as a factor on the trace's own rate."""

    name: str
    trace: str
    fleet: Fleet
    slo: Slo
    block_tokens: int | None
    rate: float
    window_s: float

    def source(self, traces: Path | None) -> str | None:
        """Return the lab's trace; None if the file is missing."""
        if self.trace.startswith(GENERATOR):
            return self.trace
        found = sorted(traces.glob(f"**/{self.trace}*")) if traces is not None else []
        return str(found[0]) if found else None

    def cell(self, source: str, rule: str, load: float, seed: int, window_s: float | None) -> Cell:
        """Return one run; `window_s` replaces the workload's own window."""
        window_s = window_s or self.window_s
        models = Models(block_tokens=self.block_tokens, warm_up_s=WARM_UP_SHARE * window_s)
        setting = Setting(self.fleet, self.slo, models, window_s, regret=False)
        return Cell(source, rule, self.rate * load, seed, setting, load)


_LARGE, _SLO = Fleet(4, "llama-3.1-70b-4xh100"), Slo(2_000.0, 200.0)
WORKLOADS = (
    *(Workload(one.name, one.trace, one.fleet, one.slo, one.block_tokens, *PACES[one.name]) for one in CONTESTS),
    Workload("rag", "generator:rag:rate_per_s=4", _LARGE, _SLO, 256, 1.65, 120.0),
    Workload("sibling_bursts", "generator:sibling_bursts:rate_per_s=0.5", _LARGE, _SLO, 256, 3.83, 120.0),
    Workload(
        "bursty_chats",
        "generator:multi_turn:rate_per_s=0.5,burst=5",
        Fleet(4, "qwen3-32b-2xh100"),
        _SLO,
        256,
        4.0,
        150.0,
    ),
    Workload("azure_code", "AzureLLMInferenceTrace_code.csv", _LARGE, _SLO, 512, 2.0, 300.0),
)
"""The tournament's six workloads and the four of docs/results/held-out.md."""
