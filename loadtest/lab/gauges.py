"""The workers' gauges over a run: what is in use, and what requests wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from loadtest.lab.measures import Pressure
from loadtest.sim.virtual_time import VirtualTime
from loadtest.sim.worker import EngineWorker

INTERVAL_S = 1.0


class Gauges:
    """Reads each worker once per second from the first `read` until `until_s`."""

    def __init__(self, time: VirtualTime, workers: Sequence[EngineWorker], until_s: float) -> None:
        self._time = time
        self._workers = workers
        self._until_s = until_s
        self._readings = 0
        self._kv = 0.0
        self._batch = 0.0
        self._waiting = Counter[str]()

    def read(self) -> None:
        for worker in self._workers:
            engine = worker.engine
            batch = len(engine.running) / engine.profile.max_num_seqs
            self._readings += 1
            self._kv += engine.kv_usage
            self._batch += batch
            tokens = engine.next_waiting_tokens
            if tokens:
                self._waiting["batch" if batch >= 1.0 else "prefill" if engine.has_room(tokens) else "kv"] += 1
        if self._time.now_s + INTERVAL_S < self._until_s:
            self._time.after(INTERVAL_S, self.read)

    def pressure(self) -> Pressure:
        readings = max(1, self._readings)
        return Pressure(self._kv / readings, self._batch / readings, dict(self._waiting))
