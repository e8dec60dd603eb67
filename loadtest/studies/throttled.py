"""How soon the gateway notices a slower worker: ``python -m loadtest.studies.throttled --traces DIR``.

The default rule plays the tournament's windows in virtual time. From minute 8 on, one worker takes `--factor` times as
long for everything. The gateway has noticed once its estimate of a token's prefill time there has grown by half of the
change. The study checks this every second, and prints the time and the worker's own first tokens until then. It also
prints the mean TTFT of requests sent in the next two minutes, over that of a run without the change.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import mean

from loadtest.lab.cell import Cell
from loadtest.lab.run_cell import Stage, profile_of
from loadtest.lab.sources import drawn
from loadtest.sim.sessions import Session, sessions_of
from loadtest.tournament.contests import CONTESTS, full

RATES = {
    "conversation": 1.756,
    "agents": 0.715,
    "hot_prompt": 0.927,
    "shared_prefixes": 1.044,
    "documents_beside_chats": 0.869,
    "no_reuse": 1.056,
}
"""Load 1.0 of each workload as a factor on its own rate, from the tournament."""
AT_S, LOOK_S, AFTER_S = 480.0, 1.0, 120.0


class Throttled(Stage):
    """A stage on which the first worker becomes slower."""

    factor = 1.0
    noticed_s: float | None = None
    requests: int | None = None

    def play(self, sessions: Iterable[Session]) -> None:
        """Play to the last token; the worker slows down at AT_S."""
        self._time.at(AT_S, self._throttle)
        super().play(sessions)

    def _token_us(self) -> tuple[float, int]:
        first = next(iter(self._routers[0].dispatcher.statistics()["workers"].values()))
        return first["prefill_token_us"], first["observations"]

    def _throttle(self) -> None:
        self._workers[0].catch_up()
        self._workers[0].engine._timing._per_ms *= self.factor
        self._usual = self._token_us()
        self._time.after(LOOK_S, self._look)

    def _look(self) -> None:
        token_us, observations = self._token_us()
        if token_us >= self._usual[0] * (1.0 + self.factor) / 2.0:
            self.noticed_s, self.requests = self._time.now_s - AT_S, observations - self._usual[1]
        elif self._time.now_s < AT_S + 600.0:
            self._time.after(LOOK_S, self._look)


def played(cell: Cell, factor: float) -> tuple[Throttled, float]:
    """Play a cell; return its stage, and the mean TTFT in seconds of requests sent in the AFTER_S after the change."""
    models = cell.setting.models
    found = drawn(cell.trace, cell.seed, cell.setting.window_s, cell.rate, models.block_tokens)
    stage = Throttled(
        replace(cell, setting=replace(cell.setting, regret=False)), profile_of(cell, found), found.length_s
    )
    stage.factor = factor
    stage.play(sessions_of(found.plan, models.timeout_s))
    outcomes = stage._clients.outcomes
    return stage, mean([one.ttft_s for one in outcomes if one.ttft_s and AT_S <= one.sent_s < AT_S + AFTER_S])


def main() -> None:
    """Print a line per workload, over all seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, default=None, help="folder with the public traces")
    parser.add_argument("--factor", type=float, default=3.0)
    parser.add_argument("--load", type=float, default=0.6)
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    extent = full(["marginal_cost"])
    for contest in CONTESTS:
        trace = contest.source(asked.traces)
        if trace is None:
            continue
        study = extent.study(contest, trace)
        found = []
        for seed in range(asked.seeds):
            cell = Cell(trace, "marginal_cost", RATES[contest.name] * asked.load, seed, study.setting, asked.load)
            (stage, after_s), (_, before_s) = played(cell, asked.factor), played(cell, 1.0)
            found.append((stage.noticed_s, stage.requests, after_s / before_s))
        noticed = [(one[0], one[1]) for one in found if one[0] is not None]
        said = "never noticed"
        if noticed:
            times_s, requests = zip(*noticed, strict=True)
            said = f"noticed in {len(noticed)} of {len(found)} after {min(times_s):.0f} to {max(times_s):.0f} s, "
            said += f"{min(requests)} to {max(requests)} first tokens"
        after = mean(one[2] for one in found)
        print(f"{contest.name:24} {said}; mean TTFT of the {AFTER_S:.0f} s after {after:.2f}", flush=True)


if __name__ == "__main__":
    main()
