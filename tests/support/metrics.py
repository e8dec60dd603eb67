"""Read the instruments of a registry, and write to them as the traffic of a gateway does."""

from __future__ import annotations

from router.metrics.catalogue import CATALOGUE, Kind
from router.metrics.registry import Registry
from router.requests.metrics import Labels as RequestLabels

_SPECS = {spec.name: spec for spec in CATALOGUE}


def counted(registry: Registry, name: str) -> list[tuple[str, ...]]:
    """Return the labels of everything that ``warmroute_{name}`` has counted or observed, once for each.

    Equal labels stand beside each other, and others in the order in which they came first.
    """
    if _SPECS[f"warmroute_{name}"].kind is Kind.HISTOGRAM:
        numbers = {labels: one.count for labels, one in registry.histogram(name).values.items()}
    else:
        numbers = {labels: int(value) for labels, value in registry.counter(name).values.items()}
    return [labels for labels, number in numbers.items() for _ in range(number)]


def check_labels(registry: Registry) -> None:
    """Check that all series have the labels that the catalogue declares."""
    for name, instrument in (registry.counters | registry.histograms).items():
        for labels in instrument.values:
            assert len(labels) == len(_SPECS[name].labels), (name, labels)


def count_prompt(registry: Registry, labels: RequestLabels, prompt_tokens: int, cached_tokens: int) -> None:
    """Count the prompt of an answer with so many cached tokens."""
    _, route, model = labels
    tokens = registry.counter("route_prompt_tokens")
    tokens.add(cached_tokens, (route, model, "true"))
    tokens.add(prompt_tokens - cached_tokens, (route, model, "false"))
