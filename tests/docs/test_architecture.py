"""The architecture page names the folders and states that the code has."""

import re
from pathlib import Path

from router.placement.health import WorkerState

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text()


def test_every_package_of_the_router_has_a_row():
    packages = {f"router/{path.parent.name}" for path in ROOT.glob("router/*/__init__.py")}
    assert packages - set(re.findall(r"^\| `([\w/]+)` \|", PAGE, re.MULTILINE)) == set()


def test_the_figure_of_a_worker_has_exactly_its_states():
    figure = PAGE.split("stateDiagram-v2")[1].split("```")[0]
    assert set(re.findall(r"[a-z_]{2,}(?= -->|: |$)", re.sub(r": .*", "", figure), re.MULTILINE)) == set(WorkerState)
