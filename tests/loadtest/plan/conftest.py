"""Plans of small fleets on seconds of traffic, in this process."""

from pathlib import Path

import pytest

from loadtest.lab.cell import Slo
from loadtest.lab.models import Models
from loadtest.lab.run_cell import run_cell
from loadtest.lab.store import Result
from loadtest.plan.sizing import Candidate, Kind, Sizing
from loadtest.plan.traffic import Piece, Traffic
from loadtest.plan.trials import Goal, Trials

SHARED = (
    "generator:shared_prefixes:rate_per_s=15,groups=12,prompts=20,low_prefix_tokens=4000,high_prefix_tokens=6000,"
    "answer_p50_tokens=20,answer_p90_tokens=60"
)
CHATS = "generator:multi_turn:rate_per_s=1.5"
UPLOADS = (
    "generator:documents_beside_chats:rate_per_s=2,upload_share=0.2,low_document_tokens=8000,"
    "high_document_tokens=30000,answer_p50_tokens=20,answer_p90_tokens=60"
)
ALONE = (
    "generator:no_reuse:rate_per_s=6,prompt_p50_tokens=4000,prompt_p90_tokens=8000,answer_p50_tokens=20,"
    "answer_p90_tokens=60"
)


@pytest.fixture
def planner():
    """Trials and their sizing over a generator; `ran` collects the cells."""
    results: dict[object, Result] = {}

    def make(trace, slo=None, share=0.8, growth=1.0, seeds=2, kv_tokens=30_000, classes=()):
        def run(cells):
            for cell in cells:
                if cell not in results:
                    results[cell] = Result("", "", {}, run_cell(cell))
            return [results[cell] for cell in cells]

        goal = Goal(slo or Slo(ttft_ms=500.0), share, growth, classes)
        trials = Trials(run, goal, Models(kv_tokens=kv_tokens, block_tokens=256), jobs=2)
        busiest = Piece(trace, 0.0, 15.0, 5.0, 300, 20.0, 15.0)
        traffic = Traffic(trace, 15.0, 300, busiest, None, ())
        return trials, Sizing(trials, traffic, seeds, lambda trial: None), busiest

    return make


def kind(policy="lpwl", most=6, roles="aggregated", price=None):
    return Kind(Candidate("llama-3.1-8b-a100", price, most), policy, roles)


@pytest.fixture
def trace_file(tmp_path) -> Path:
    return tmp_path / "trace.jsonl"
