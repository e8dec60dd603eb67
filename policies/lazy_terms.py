"""Cost terms that are computed only when they are read, because most decisions are never looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from policies.view import WorkerId, WorkerView


class LazyTerms(Mapping[WorkerId, Mapping[str, float]]):
    """The named parts of each worker's cost, which `explain` computes from the view that the decision used."""

    __slots__ = ("_explain", "_workers")

    def __init__(self, workers: tuple[WorkerView, ...], explain: Callable[[WorkerView], Mapping[str, float]]) -> None:
        self._workers = workers
        self._explain = explain

    def __getitem__(self, worker: WorkerId) -> Mapping[str, float]:
        for view in self._workers:
            if view.id == worker:
                return self._explain(view)
        raise KeyError(worker)

    def __iter__(self) -> Iterator[WorkerId]:
        return (view.id for view in self._workers)

    def __len__(self) -> int:
        return len(self._workers)
