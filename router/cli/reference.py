"""Reference pages made from code: ``python -m router.cli.reference [FOLDER]`` writes policies, metrics and paths.

The admin API's page is made by `router.admin.reference`, the sample of all settings by ``warmroute config --sample``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from policies.registry import BUILT_IN, describe
from router.gateway.paths import FORBIDDEN_PATHS, FORBIDDEN_PREFIXES, ROUTES, Route
from router.telemetry.catalogue import CATALOGUE, MetricSpec

_MADE = "This page is made by `python -m router.cli.reference`; a test holds it to the code.\n"


def policies_page() -> str:
    """Every built-in policy with its parameters."""
    lines = [
        "# Policies",
        "",
        _MADE,
        "Choose one with `--policy NAME`, `policy.name` in the file, or `PUT /admin/v1/policy`; your own: "
        "[write a policy](../how-to/write-a-policy.md).",
    ]
    for name in BUILT_IN:
        described = describe(name)
        lines += ["", f"## `{name}`", "", described["summary"]]
        if described["params"]:
            rows = ((key, value["type"], repr(value["default"])) for key, value in described["params"].items())
            lines += ["", *_table(("parameter", "type", "default"), ((f"`{a}`", b, f"`{c}`") for a, b, c in rows))]
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    """Every exported metric."""
    lines = [
        "# Metrics",
        "",
        _MADE,
        "`GET /metrics` on the admin port, Prometheus text format. With `--processes` it tells the `sum` over all "
        "processes, or, of what each of them sees, the largest (`max`) or least (`min`) value.",
        "",
    ]
    heads = ("metric", "type", "labels", "processes", "meaning")
    return "\n".join([*lines, *_table(heads, map(_metric, CATALOGUE))]) + "\n"


def _metric(spec: MetricSpec) -> tuple[str, ...]:
    labels = ", ".join(f"`{label}`" for label in spec.labels)
    return f"`{spec.exported_name}`", spec.kind.value, labels, spec.merge.value, spec.help


def paths_page() -> str:
    """Every forwarded path, and those that never are."""
    lines = [
        "# Paths of the public port",
        "",
        _MADE,
        "Answered by the gateway: `GET /v1/models` (the union over the fleet), `/health`, `/livez`, `/readyz`, "
        "`/version`. Forwarded (`extra_paths` adds more); any other path is a 404 with code `path_not_found`:",
        "",
        *_table(("path", "methods", "model named in", "placed by"), map(_route, ROUTES)),
        "",
        "Never forwarded, whatever the configuration says, because they change a worker: "
        + ", ".join(f"`{path}`" for path in sorted((*FORBIDDEN_PATHS, *(f"{p}*" for p in FORBIDDEN_PREFIXES))))
        + ".",
    ]
    return "\n".join(lines) + "\n"


def _route(route: Route) -> tuple[str, ...]:
    placed = "prefix" if route.by_prefix else "the worker that made it" if route.pinned else "load"
    return f"`{route.pattern}`", ", ".join(route.methods), route.model.value, placed


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


PAGES: Mapping[str, Callable[[], str]] = {
    "policies.md": policies_page,
    "metrics.md": metrics_page,
    "paths.md": paths_page,
}


def main(arguments: list[str]) -> int:
    """Write all pages into the folder named (default ``docs/reference``)."""
    folder = Path(arguments[0] if arguments else "docs/reference")
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
