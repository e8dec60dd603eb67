"""A result is found again by everything that it depends on."""

from dataclasses import fields, replace

import pytest

from loadtest.lab import cell as cells
from loadtest.lab.cell import Fleet, Slo, digest
from loadtest.lab.models import Models


def test_the_load_is_a_name_for_the_rate_and_no_part_of_the_digest(cell):
    assert digest(cell(load=0.5)) == digest(cell(load=None)) == digest(cell())
    assert digest(cell(rate=1.5)) != digest(cell())


@pytest.mark.parametrize(
    "change", [{"policy": "random"}, {"seed": 7}, {"trace": "generator:rag"}, {"regret": False}], ids=str
)
def test_what_a_cell_depends_on_is_in_its_digest(cell, change):
    assert digest(cell(**change)) != digest(cell())


def test_so_are_the_fleet_and_the_service_level(cell):
    one = cell()
    others = [
        replace(one.setting, fleet=Fleet(3, one.setting.fleet.profile)),
        replace(one.setting, slo=Slo(1.0, 1.0)),
        replace(one.setting, window_s=21.0),
    ]
    assert len({digest(one), *(digest(replace(one, setting=other)) for other in others)}) == 4


def test_every_model_counts(cell):
    one = cell()
    digests = {digest(one)}
    for field in fields(Models):
        value = getattr(one.setting.models, field.name)
        models = replace(one.setting.models, **{field.name: not value if isinstance(value, bool) else (value or 0) + 1})
        digests.add(digest(replace(one, setting=replace(one.setting, models=models))))
    assert len(digests) == len(fields(Models)) + 1


def test_a_file_counts_by_what_is_in_it(cell, tmp_path):
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text("{}")
    second.write_text("{ }")
    one, other = (digest(cell(trace=str(path))) for path in (first, second))
    assert one != other


def test_other_code_is_another_digest(cell, monkeypatch):
    before = digest(cell())
    monkeypatch.setattr(cells, "code_version", lambda: "other")
    assert digest(cell()) != before


def test_the_code_is_that_of_what_decides():
    assert len(cells.code_version()) == 12
    assert {"policies", "router.core", "backends.engine", "loadtest.sim"} <= set(cells._WHAT_DECIDES)
