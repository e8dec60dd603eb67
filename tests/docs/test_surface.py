"""Each setting, metric, command and operation names its user."""

import re

from docs.build.surface import USERS, problems
from tests.docs.test_generated_pages import ROOT


def test_everything_has_one_user():
    assert problems() == []


def test_dashboards_show_what_the_table_says():
    dashboards = {path.stem: path.read_text() for path in (ROOT / "deploy/grafana").glob("*.json")}
    for (_, use), names in USERS["Metrics"].items():
        if use.startswith("dashboard "):
            text = dashboards[use.removeprefix("dashboard ").lower().replace(" ", "-")]
            assert [one for one in names.split() if not re.search(rf"warmroute_{one}(_|\b)", text)] == []
