"""Evidence of one endpoint's life and death. Pure: times are arguments.

A worker *makes progress* while bytes of its answers arrive, its requests end, or a figure of its `/metrics` moves: its
engine works. It *answers* while a probe or a read of `/metrics` succeeds: its server runs, though its engine may hang.
A refused connection says that no process listens. Silence alone says nothing; see `router.placement.fleet.health`.
"""

from __future__ import annotations

import math

from backends.worker import LoadReport


class WorkerEvidence:
    """When one endpoint last gave which sign; each time is -inf before the first one.

    `progress_s` is the last sign of the engine's work, as far as it was noted: `Fleet.evidence` also asks for the
    latest reads of answers. `generation_s` is when the token counters of `/metrics` were last seen to move, which may
    be up to `health.probe_interval_s` after they did. `counts_tokens` says whether the worker publishes any.
    """

    __slots__ = ("_reports", "answered_s", "counts_tokens", "generation_s", "progress_s", "refused_s", "reset_s")

    def __init__(self) -> None:
        self.progress_s = -math.inf
        self.generation_s = -math.inf
        self.answered_s = -math.inf
        """When a probe or a read of `/metrics` was last answered, in time or late."""
        self.refused_s = -math.inf
        """When a connection was last refused."""
        self.reset_s = -math.inf
        """When a probe's connection last broke."""
        self.counts_tokens = False
        self._reports: dict[int, LoadReport] = {}

    @property
    def life_s(self) -> float:
        return max(self.progress_s, self.answered_s)

    @property
    def refuses(self) -> bool:
        """Whether the last connection was refused, and nothing has shown life since."""
        return self.refused_s > self.life_s

    def progressed(self, at_s: float) -> None:
        """Record that bytes of an answer arrived, or a request was answered."""
        self.progress_s = max(self.progress_s, at_s)

    def generated(self, at_s: float) -> None:
        self.generation_s = max(self.generation_s, at_s)
        self.progressed(at_s)

    def answered(self, at_s: float) -> None:
        self.answered_s = max(self.answered_s, at_s)

    def refused(self, at_s: float) -> None:
        self.refused_s = max(self.refused_s, at_s)

    def reset(self, at_s: float) -> None:
        self.reset_s = max(self.reset_s, at_s)

    def reported(self, report: LoadReport, now_s: float) -> None:
        """Compare one rank's figures with those before. The first ones show no movement.

        A long prefill moves no token counter until its end, but the use of the KV cache grows with each of its chunks.
        """
        self.answered(now_s)
        before, self._reports[report.rank] = self._reports.get(report.rank), report
        tokens = _tokens(report)
        if tokens != (None, None):
            self.counts_tokens = True
        if before is None:
            return
        if tokens != _tokens(before):
            self.generated(now_s)
        elif report != before:
            self.progressed(now_s)


def _tokens(report: LoadReport) -> tuple[int | None, int | None]:
    return report.generation_tokens, report.prompt_tokens
