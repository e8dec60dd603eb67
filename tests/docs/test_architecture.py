"""The architecture page names the folders and states that the code has."""

import re

from docs.build.architecture import FILE, ROOT
from router.placement.fleet.health import WorkerState


def test_every_package_of_the_router_has_a_row():
    packages = {f"router/{path.parent.name}" for path in ROOT.glob("router/*/__init__.py")}
    assert packages - set(re.findall(r"^\| `([\w/]+)` \|", FILE.read_text(), re.MULTILINE)) == set()


def test_the_figure_of_a_worker_has_exactly_its_states():
    figure = FILE.read_text().split("## One worker")[1].split("stateDiagram-v2")[1].split("```")[0]
    assert set(re.findall(r"[a-z_]{2,}(?= -->|: |$)", re.sub(r": .*", "", figure), re.MULTILINE)) == set(WorkerState)
