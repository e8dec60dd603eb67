"""Prompts as token ids: a scenario's messages, rendered and tokenised by the gateway's own code."""

from __future__ import annotations

from pathlib import Path

from backends.vllm.render import ChatRenderer
from loadtest.fidelity.scenarios import Scenario


def prompt_ids(scenario: Scenario, model_dir: Path) -> dict[str, list[int]]:
    """Token ids by request id."""
    renderer = ChatRenderer.load(model_dir)
    return {
        arrival.id: renderer.encode(renderer.render(arrival.body("")), add_special_tokens=False)
        for arrival in scenario.arrivals
    }
