"""The answers of several sources as one."""

from __future__ import annotations

from collections.abc import Mapping

from router.config.model import WorkerConfig
from router.control.state.desired_state import FoundWorker

Answers = Mapping[str, Mapping[str, WorkerConfig]]
"""Workers by id, of each source by its name, in the order of precedence."""


def merged(answers: Answers) -> dict[str, FoundWorker]:
    """Return every worker with the settings of the first source that names it, and the names of the others."""
    sources: dict[str, list[str]] = {}
    for source, workers in answers.items():
        for name in workers:
            sources.setdefault(name, []).append(source)
    return {
        name: FoundWorker(worker=answers[first][name], source=first, also=tuple(others))
        for name, (first, *others) in sources.items()
    }
