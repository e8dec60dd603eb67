from dataclasses import replace

import pytest

from loadtest.lab import study as studies
from loadtest.lab.cell import as_json
from loadtest.lab.report.output import as_json as output
from loadtest.lab.report.tables import summary
from loadtest.lab.run_cell import run_cell
from loadtest.lab.saturation import Saturation, SaturationError
from loadtest.lab.store import Result
from loadtest.lab.study import Study


@pytest.fixture
def study(cell):
    one = cell()
    return Study(one.trace, ["lpwl", "random"], [0.5, 0.9], 3, one.setting)


def test_every_rule_load_and_seed_is_a_cell_and_cells_of_a_plan_are_neighbours(study):
    cells = study.cells(Saturation("lpwl", 4.0, 10.0))
    assert len(cells) == len(set(cells)) == 2 * 2 * 3
    plans = [(one.seed, one.load) for one in cells]
    assert plans == sorted(plans)
    assert {one.load: one.rate for one in cells} == {0.5: 2.0, 0.9: 3.6}


def test_another_setting_is_asked_the_same(study, cell):
    other = cell(models={"jitter": 0.2}).setting
    assert {one.setting for one in study.cells(Saturation("lpwl", 4.0, 10.0), other)} == {other}


def test_the_bisection_begins_with_the_first_cell(study):
    first = study.first()
    assert (first.policy, first.rate, first.seed, first.load) == ("lpwl", 1.0, 0, None)


def test_round_robin_may_hold_the_level_at_no_rate(study, monkeypatch):
    def search(like, policy, run):
        if policy == "round_robin":
            raise SaturationError("too slow")
        return Saturation(policy, 1.0, 2.0)

    monkeypatch.setattr(studies, "saturation", search)
    assert study.saturations(lambda cells: []) == (Saturation("lpwl", 1.0, 2.0), None)


def test_seeds_begin_where_they_are_said_to(study):
    later = replace(study, first_seed=10)
    assert [one.seed for one in later.cells(Saturation("lpwl", 1.0, 2.0))] == [
        10 + one.seed for one in study.cells(Saturation("lpwl", 1.0, 2.0))
    ]


def test_load_1_there_has_to_be(study, monkeypatch):
    def search(like, policy, run):
        raise SaturationError("too slow")

    monkeypatch.setattr(studies, "saturation", search)
    with pytest.raises(SaturationError):
        study.saturations(lambda cells: [])


def test_a_round_robin_without_a_rate_is_said_to_have_none(study, cell):
    results = [Result("0", "code", as_json(one), *run_cell(one)) for one in study.cells(Saturation("lpwl", 1.0, 2.0))]
    found = study.findings(Saturation("lpwl", 1.0, 2.0), None, results)
    assert "round_robin's there: no rate holds it." in summary(found)
    assert output(found)["round_robin"] is None
    assert found.seeds == 3
