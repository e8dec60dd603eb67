"""Sources of plans: a trace file or a generator. A seed draws a plan from either.

Equal arguments of `draw` give equal plans. A source can be pickled, so that processes can share the runs.
"""

from __future__ import annotations

from pathlib import Path

from loadtest.workload.generators.registry import Generator, parse_generator
from loadtest.workload.trace import Trace

GENERATOR = "generator:"
FORM = f"FILE|{GENERATOR}NAME[:key=value,...]"


def parse_source(text: str) -> Generator | Trace:
    """Return the source that ``--trace`` names: a file, or ``generator:NAME[:key=value,...]``.

    Raises:
        WorkloadError: there is no such file, generator or parameter, or a value is out of range; says which there are.
    """
    if text.startswith(GENERATOR):
        return parse_generator(text.removeprefix(GENERATOR))
    return Trace.of(Path(text))
