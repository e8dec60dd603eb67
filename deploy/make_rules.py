"""`prometheus/rules.yml`, made by ``python -m docs.build`` from the conditions that the diagnosis also has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby

from router.diagnosis.condition import Condition
from router.diagnosis.conditions import CONDITIONS

HEAD = """\
# Alerts about Warmroute, made from router/diagnosis/conditions.py by `make manifests`: `warmroute diagnose` finds the
# same. docs/how-to/operate.md says what to do about each one; runbook_url is its place in this repository. Gauges of
# what every gateway sees alike are merged by max, counters are summed.
groups:
"""


def text() -> str:
    """Return the file."""
    groups = (_group(name, list(conditions)) for name, conditions in groupby(CONDITIONS, lambda one: one.group))
    return HEAD + "\n".join(groups)


def _group(name: str, conditions: list[Condition]) -> str:
    return f"  - name: warmroute-{name}\n    rules:\n" + "".join(line for one in conditions for line in _rule(one))


def _rule(condition: Condition) -> Iterator[str]:
    rule = condition.rule()
    yield f"      - alert: {condition.alert}\n"
    yield from _expression(condition.watched.promql.splitlines())
    if condition.alert_after:
        yield f"        for: {condition.alert_after}\n"
    for name in ("labels", "annotations"):
        values = rule[name]
        assert isinstance(values, dict)
        if name == "labels":
            yield f"        labels: {{severity: {values['severity']}}}\n"
            continue
        yield "        annotations:\n"
        yield from (f"          {key}: {_scalar(value)}\n" for key, value in values.items())


def _expression(lines: list[str]) -> Iterator[str]:
    if len(lines) == 1:
        yield f"        expr: {lines[0]}\n"
        return
    yield "        expr: >-\n"
    yield from (f"          {line}\n" for line in lines)


def _scalar(value: str) -> str:
    """Return a text as YAML: in quotes if it has braces or a colon."""
    return json.dumps(value) if set(value) & set("{}:#") and not value.startswith("docs/") else value
