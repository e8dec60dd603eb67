"""A page of Prometheus metrics."""

from __future__ import annotations


def sums(page: str) -> dict[str, float]:
    """Return the sum of each metric over its labels.

    Raises:
        ValueError: it is no page of metrics.
    """
    found: dict[str, float] = {}
    for line in page.splitlines():
        if line and not line.startswith("#"):
            name = line.partition("{")[0].partition(" ")[0]
            found[name] = found.get(name, 0.0) + float(line.rpartition(" ")[2])
    return found
