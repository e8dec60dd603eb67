"""Coding agents: long loops of tool calls, and people who come back after minutes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar

from loadtest.workload.draw import Draws
from loadtest.workload.generators.shape import Conversing, Count, Positive, Seconds, Share, Tokens, says
from loadtest.workload.plan import Session
from loadtest.workload.text import Text


class Agents(Conversing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sessions of 20 to 100 steps behind one of a few long system prompts. A step answers briefly and calls a tool,
    whose result is appended; or, at `human_share` of the steps, a person reads and writes.

    Tools mostly take a fraction of a second and sometimes long, people take minutes. Contexts grow from the system
    prompt to `context_tokens`, where a session ends. Tools' gaps, people's median and how often they come in are what
    TraceLab (2026) found in sessions of Claude Code and Codex; the rest is chosen.
    """

    kinds: ClassVar[tuple[str, ...]] = ("agent",)
    part: ClassVar[str] = "result"

    rate_per_s: Annotated[Positive, says("sessions that begin per second")] = 0.05
    history_s: Annotated[Seconds, says("sessions begin up to this time before the run; 0: none")] = 2_400.0
    ramp_s: Annotated[Seconds, says("time within which earlier sessions continue after the start")] = 120.0
    systems: Annotated[Count, says("different agents: system prompts with their tools")] = 3
    system_tokens: Annotated[Tokens, says("length of a system prompt")] = 12_000
    low_turns: Annotated[Count, says("fewest steps")] = 20
    high_turns: Annotated[Count, says("most steps")] = 100
    result_p50_tokens: Annotated[Tokens, says("tool result or message, median")] = 700
    result_p90_tokens: Annotated[Tokens, says("tool result, 90th percentile: a file was read")] = 4_500
    answer_p50_tokens: Annotated[Tokens, says("answer, median")] = 120
    answer_p90_tokens: Annotated[Tokens, says("answer, 90th percentile: a file was written")] = 700
    tool_gap_p50_s: Annotated[Positive, says("tool's time, median")] = 0.3
    tool_gap_p90_s: Annotated[Positive, says("tool's time, 90th percentile")] = 13.6
    human_share: Annotated[Share, says("steps that wait for a person")] = 0.1
    human_gap_p50_s: Annotated[Positive, says("person's time, median")] = 86.0
    human_gap_p90_s: Annotated[Positive, says("person's time, 90th percentile")] = 600.0
    context_tokens: Annotated[Tokens, says("longest prompt")] = 200_000

    def sessions(self, starts: Iterable[float], draws: Draws) -> Iterator[Session]:
        systems = [Text.of([draws.piece(self.system_tokens)]) for _ in range(self.systems)]
        for number, start_s in enumerate(starts):
            system = draws.rng.choice(systems)
            turns = draws.between(self.low_turns, self.high_turns)
            calls = self.turns(system, turns, draws, "agent", self.context_tokens)
            yield Session(f"agent-{number}", start_s, tuple(calls))

    def pause_s(self, draws: Draws) -> float:
        if draws.rng.random() < self.human_share:
            return draws.around(self.human_gap_p50_s, self.human_gap_p90_s)
        return draws.around(self.tool_gap_p50_s, self.tool_gap_p90_s)
