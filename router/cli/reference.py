"""Reference pages made from code: ``python -m router.cli.reference [FOLDER]`` writes policies (an index and a page
each), metrics, paths and limits.

The admin API's page is made by `router.admin.reference`, the sample of all settings by ``warmroute config --sample``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import Any

from policies.registry import BUILT_IN, describe
from router.cli.limits import FIXED_HEADS, HEADS, fixed_rows, setting_rows
from router.gateway.paths import FORBIDDEN_PATHS, FORBIDDEN_PREFIXES, ROUTES, Route
from router.telemetry.catalogue import CATALOGUE, MetricSpec

_MADE = "This page is made by `python -m router.cli.reference`; a test holds it to the code.\n"


def policies_page() -> str:
    """Every built-in policy in a line."""
    lines = [
        "# Policies",
        "",
        _MADE,
        "Choose one with `--policy NAME`, `policy.name` in the file, or `PUT /admin/v1/policy`; your own: "
        "[write a policy](../how-to/write-a-policy.md).",
        "",
    ]
    rows = ((f"[`{name}`](policies/{name}.md)", described["summary"]) for name, described in _policies())
    return "\n".join([*lines, *_table(("policy", "chooses"), rows)]) + "\n"


def _policies() -> Iterable[tuple[str, dict[str, Any]]]:
    for name in BUILT_IN:
        described = describe(name)
        yield name, {**described, "summary": described["summary"].replace("``", "`").replace("|", r"\|")}


def policy_page(name: str) -> str:
    """What the policy's class says of it, and its parameters."""
    text = cleandoc(BUILT_IN[name].__doc__ or "").replace("``", "`")
    use = f"warmroute serve --policy {name} --worker http://10.0.0.5:8000 --worker http://10.0.0.6:8000"
    params = describe(name)["params"]
    lines = [f"# `{name}`", "", _MADE, text, "", "```sh", use, "```", "", "[All policies](../policies.md)"]
    if params:
        heads = ("parameter", "type", "default", "meaning")
        rows = (
            (f"`{key}`", about["type"], f"`{about['default']!r}`", about["meaning"]) for key, about in params.items()
        )
        given = f"`--policy-param {next(iter(params))}=...`, once per parameter, or `policy.params` in the file."
        lines[-2:-2] = ["", *_table(heads, rows), "", given]
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
    if not route.prefills and not route.pinned:
        placed += "; nothing is prefilled"
    return f"`{route.pattern}`", ", ".join(route.methods), route.model.value, placed


def limits_page() -> str:
    """Every limit, and what a client sees of it."""
    lines = [
        "# Limits",
        "",
        _MADE,
        "What a client sees is an error of the gateway in OpenAI's shape (Anthropic's under `/v1/messages`), with the "
        "status and code named here, unless the table says otherwise. 0 means no limit.",
        "",
        "## Settings",
        "",
        *_table(HEADS, setting_rows()),
        "",
        "## Fixed limits",
        "",
        *_table(FIXED_HEADS, fixed_rows()),
    ]
    return "\n".join(lines) + "\n"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


PAGES: Mapping[str, Callable[[], str]] = {
    "policies.md": policies_page,
    "metrics.md": metrics_page,
    "paths.md": paths_page,
    "limits.md": limits_page,
    **{f"policies/{name}.md": partial(policy_page, name) for name in BUILT_IN},
}


def main(arguments: list[str]) -> int:
    """Write all pages into the folder named (default ``docs/reference``)."""
    parser = argparse.ArgumentParser(prog="python -m router.cli.reference", description="Writes the reference pages.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/reference"))
    folder = parser.parse_args(arguments).folder
    (folder / "policies").mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
