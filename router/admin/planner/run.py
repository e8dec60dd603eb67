"""One run of the planner at a time, as a child of the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from math import ceil
from pathlib import Path
from typing import Any

from backends.foreign_json import read_json
from router.admin.http.problems import AdminError
from router.admin.planner.documents import PlannerDocument, PlanQuestion

WALL_FACTOR = 4
"""Time of a run over its CPU time: with its low priority it waits for others."""
_SHOWN = 500
_VERDICTS = range(3)
"""Exit codes of `warmroute plan` with a plan; 3 is wrong input."""
_OVER = {-signal.SIGXCPU: "CPU time", -signal.SIGKILL: "CPU time", -signal.SIGALRM: "time"}


@dataclass(slots=True)
class PlanRun:
    """A run: `plan` once it has one, or the `problem`."""

    question: PlanQuestion
    unknown: Sequence[str]
    started_s: float
    ended_s: float | None = None
    plan: dict[str, Any] | None = None
    problem: str | None = None

    def document(self) -> PlannerDocument:
        ended_s, plan = self.ended_s, self.plan
        return PlannerDocument(
            state="running" if ended_s is None else "failed" if plan is None else "done",
            question=self.question,
            started_at=self.started_s,
            ended_at=ended_s,
            age_s=None if ended_s is None else max(0.0, time.time() - ended_s),
            cpu_s=None if plan is None else plan["cpu_s"],
            workers=None if plan is None else plan["workers"],
            plan=plan,
            problem=self.problem,
            unknown=tuple(self.unknown),
        )


class PlannerRuns:
    """The latest run of an admin port. A run that the gateway's end cancels is killed."""

    def __init__(self) -> None:
        self.latest: PlanRun | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, question: PlanQuestion, words: Sequence[str], unknown: Sequence[str]) -> PlanRun:
        """Begin `warmroute plan` with these `words`.

        Raises:
            AdminError: 409, another one runs.
        """
        if self._task is not None and not self._task.done():
            detail = "another plan is made; ask for it with GET, and again when it is done"
            raise AdminError(HTTPStatus.CONFLICT, "planner_running", detail, headers={"retry-after": "10"})
        self.latest = run = PlanRun(question, unknown, time.time())
        self._task = asyncio.create_task(_ended(run, words), name="planner")
        return run


async def _ended(run: PlanRun, words: Sequence[str]) -> None:
    try:
        with tempfile.TemporaryDirectory(prefix="warmroute-planner-") as folder:
            run.plan, run.problem = await _planned(run.question, words, Path(folder))
    except OSError as error:
        run.problem = f"the process cannot be started: {error.strerror or error}"
    finally:
        run.ended_s = time.time()


async def _planned(
    question: PlanQuestion, words: Sequence[str], folder: Path
) -> tuple[dict[str, Any] | None, str | None]:
    """Return the plan, or why there is none."""
    out, said = folder / "plan.json", folder / "said"
    wall_s = ceil(WALL_FACTOR * question.cpu_s)
    limits = (str(question.cpu_s), str(wall_s))
    command = (sys.executable, "-P", "-m", "router.admin.planner.child", *limits, *words, f"--json={out}")
    with said.open("wb") as errors:
        child = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            env={**os.environ, "COLUMNS": "200"},
        )
        try:
            code = await child.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                if child.returncode is None:
                    child.kill()
    if code in _VERDICTS and out.exists():
        return await asyncio.to_thread(lambda: read_json(out.read_bytes(), dict[str, Any])), None
    over = f"the run has used up its {_OVER[code]}; " if code in _OVER else ""
    budget = f"it has {question.cpu_s} s of CPU time in each of two processes, and {wall_s} s in all"
    last = said.read_text(errors="replace").strip()[-_SHOWN:].rpartition("warmroute plan: ")[2]
    return None, f"{over}{last or 'no message'} ({budget}; a shorter window_s takes less)"
