"""Every file that is generated from code."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from runpy import run_path

from docs.build import architecture
from docs.build.reference import PAGES
from router.config.sample import sample_yaml

ROOT = Path(__file__).parents[2]
CHART_FILES = ROOT / "deploy/helm/warmroute/files"


def pages() -> dict[Path, str]:
    """Return the text of each generated file as the code is now."""
    http = import_module("tests.conformance.page")
    files = {ROOT / "docs/reference" / name: page() for name, page in PAGES.items()}
    files[ROOT / "docs/warmroute.sample.yaml"] = sample_yaml()
    files[architecture.FILE] = architecture.page()
    files[http.PAGE] = http.page()
    for path, text in _monitoring():
        files[path] = files[CHART_FILES / path.name] = text
    return files


def _monitoring() -> Iterator[tuple[Path, str]]:
    """Yield alerts and dashboards, of which the chart has copies."""
    rules, dashboards = (run_path(str(ROOT / "deploy" / name)) for name in ("make_rules.py", "make_dashboards.py"))
    yield ROOT / "deploy/prometheus/rules.yml", rules["text"]()
    for dashboard in dashboards["DASHBOARDS"]:
        yield ROOT / f"deploy/grafana/{dashboard.name}.json", dashboards["text_of"](dashboard)
