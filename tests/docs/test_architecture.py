"""The architecture page names the folders and states that the code has.

Run this file as a script to write the page's figures of the request flow and of who may import whom.
"""

import re
import tomllib
from pathlib import Path

from router.cli import request_flow
from router.placement.health import WorkerState

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs/architecture.md"


def layers(container: str | None) -> str:
    """The `layers` contract of pyproject.toml, one line a layer."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    found = next(
        one["layers"]
        for one in contracts
        if one["type"] == "layers" and (one.get("containers") or [None])[0] == container
    )
    return "\n".join(found)


def with_figures(page: str) -> str:
    for name, container in (("the project", None), ("router", "router")):
        figure = f"<!-- layers of {name} -->\n```text\n{layers(container)}\n```"
        page = re.sub(rf"<!-- layers of {name} -->\n```text\n.*?```", figure, page, flags=re.DOTALL)
    figure = "\n".join(request_flow.figure())
    return re.sub(
        r"<!-- states of a request -->\n```mermaid\n.*?```",
        f"<!-- states of a request -->\n{figure}",
        page,
        flags=re.DOTALL,
    )


def test_every_package_of_the_router_has_a_row():
    packages = {f"router/{path.parent.name}" for path in ROOT.glob("router/*/__init__.py")}
    assert packages - set(re.findall(r"^\| `([\w/]+)` \|", FILE.read_text(), re.MULTILINE)) == set()


def test_the_figure_of_a_worker_has_exactly_its_states():
    figure = FILE.read_text().split("## One worker")[1].split("stateDiagram-v2")[1].split("```")[0]
    assert set(re.findall(r"[a-z_]{2,}(?= -->|: |$)", re.sub(r": .*", "", figure), re.MULTILINE)) == set(WorkerState)


def test_the_figures_of_imports_are_those_of_pyproject():
    page = FILE.read_text()
    assert page == with_figures(page), "run `python tests/docs/test_architecture.py`"


if __name__ == "__main__":
    FILE.write_text(with_figures(FILE.read_text()))
