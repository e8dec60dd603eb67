"""Sources of plans: a trace file or a generator. A seed draws a plan from either."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from loadtest.workload.generators.registry import Generator, parse_generator
from loadtest.workload.plan import Plan
from loadtest.workload.trace import Trace

GENERATOR = "generator:"
FORM = f"FILE|{GENERATOR}NAME[:key=value,...]"


class Source(Protocol):
    """A source from which plans are drawn. It can be pickled, so that processes can share the runs."""

    @property
    def name(self) -> str: ...

    def draw(self, seed: int, length_s: float, faster: float = 1.0) -> Plan:
        """Draw the traffic of `length_s` seconds at `faster` times the source's rate. Equal arguments give equal plans.

        Raises:
            WorkloadError: the trace cannot be read.
        """


def parse_source(text: str) -> Source:
    """Return the source that ``--trace`` names: a file, or ``generator:NAME[:key=value,...]``.

    Raises:
        WorkloadError: there is no such file, generator or parameter, or a value is out of range; says which there are.
    """
    if text.startswith(GENERATOR):
        return parse_generator(text.removeprefix(GENERATOR))
    return Trace.of(Path(text))


__all__ = ["FORM", "Generator", "Source", "Trace", "parse_source"]
