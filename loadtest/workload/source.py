"""Where plans come from: a trace file, or a generator; both are drawn from by seed."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from loadtest.workload.generators.registry import Generator, parse_generator
from loadtest.workload.plan import Plan
from loadtest.workload.trace import Trace

GENERATOR = "generator:"
FORM = f"FILE|{GENERATOR}NAME[:key=value,...]"


class Source(Protocol):
    """Something that plans are drawn from. Its objects pickle, so that runs can be spread over processes."""

    @property
    def name(self) -> str:
        """Names it in tables and file names."""

    @property
    def about(self) -> str:
        """One line on what it is."""

    def draw(self, seed: int, length_s: float, faster: float = 1.0) -> Plan:
        """What arrives in `length_s` seconds at `faster` times the source's own rate. Equal arguments, equal plans.

        Raises:
            WorkloadError: the trace cannot be read.
        """


def parse_source(text: str) -> Source:
    """The source that ``--trace`` names: a file, or ``generator:NAME[:key=value,...]``.

    Raises:
        WorkloadError: there is no such file, generator or parameter, or a value is out of range; says which there are.
    """
    if text.startswith(GENERATOR):
        return parse_generator(text.removeprefix(GENERATOR))
    return Trace.of(Path(text))


__all__ = ["FORM", "Generator", "Source", "Trace", "parse_source"]
