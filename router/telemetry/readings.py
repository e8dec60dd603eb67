"""The metrics of this process that are read at scrape time."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from router.config.budgets import BODIES, RESPONSES
from router.config.memory import memory_limit
from router.config.model import Config
from router.config.version import version
from router.metrics.instruments import Reading
from router.metrics.registry import COMPILED
from router.telemetry.logs import lines_dropped


class ProcessReadings:
    """The interpreter and the settings. The supervisor of several counts the processes that answer, and restarts."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._limit = memory_limit()

    def readings(self) -> Iterator[Reading]:
        yield "warmroute_buffered_limit_bytes", ("requests",), BODIES.within(self._config)
        yield "warmroute_buffered_limit_bytes", ("responses",), RESPONSES.within(self._config)
        if self._limit is not None:
            yield "warmroute_memory_limit_bytes", (self._limit.source,), self._limit.size_bytes
        yield "warmroute_processes", (), 1.0
        yield "warmroute_process_restarts", (), 0.0
        yield "warmroute_log_lines_dropped", (), lines_dropped()
        yield "warmroute_build_info", (version(), platform.python_version(), str(COMPILED).lower()), 1.0
