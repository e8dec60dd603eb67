"""Prompts as token ids. The gateway's own code renders and tokenises a scenario's messages."""

from __future__ import annotations

from pathlib import Path

from backends.vllm.render import ChatRenderer
from loadtest.fidelity.scenarios import Scenario


def prompt_ids(scenario: Scenario, model_dir: Path) -> dict[str, list[int]]:
    """Return the token ids of each request by its id."""
    renderer = ChatRenderer.load(model_dir)
    return {
        arrival.id: renderer.encode(renderer.render(arrival.body("")), add_special_tokens=False)
        for arrival in scenario.arrivals
    }
