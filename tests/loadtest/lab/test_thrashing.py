"""More conversations than a cache holds: some have to wait, or all of them compute everything anew."""

from dataclasses import replace

import pytest

from loadtest.lab.cell import Fleet
from loadtest.lab.run_cell import run_cell

SESSIONS = 14
ROUNDS = 40
CONTEXT = 40_000


@pytest.fixture
def agents(tmp_path, cell):
    """Conversations of 40,000 tokens and more with pauses of a third of a second, on a worker with room for ten."""
    rows = ["session_id,arrival_time,round,prefix_len,input_len,output_len,tool_wait_after_ms"]
    for session in range(SESSIONS):
        context = 0
        for number in range(ROUNDS):
            new = CONTEXT if number == 0 else 300
            rows.append(f"s{session},{4_000 * session},{number},{context},{new},100,300")
            context += new + 100
    trace = tmp_path / "agents.csv"
    trace.write_text("\n".join(rows) + "\n")

    def make(policy):
        one = cell(models={"kv_tokens": 440_000, "warm_up_s": 0.0}, trace=str(trace), policy=policy)
        setting = replace(one.setting, fleet=Fleet(1, "llama-3.1-8b-h100"), window_s=300.0)
        return run_cell(replace(one, setting=setting))

    return make


def test_running_conversations_continue_while_others_wait(agents):
    waiting, thrashing = agents("marginal_cost").all, agents("marginal_cost:hold.kv_space=0").all
    assert waiting.hit_share > thrashing.hit_share + 0.05
    assert waiting.calls > 1.2 * thrashing.calls, "closed loops: who gets answers sooner asks more"
    assert waiting.e2e_mean_ms < thrashing.e2e_mean_ms
    assert waiting.goodput_per_s > 1.5 * thrashing.goodput_per_s
