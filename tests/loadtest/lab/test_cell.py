import importlib
import subprocess
import sys
from dataclasses import fields, replace

import pytest

from loadtest.lab import cell as cells
from loadtest.lab.cell import Fleet, Slo, digest
from loadtest.lab.models import Models
from policies import registry


def test_the_digest_covers_everything_a_cell_depends_on_but_the_name_of_its_load(cell, tmp_path):
    one = cell()
    assert digest(cell(load=0.5)) == digest(cell(load=None)) == digest(one)
    files = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path, text in zip(files, ("{}", "{ }"), strict=True):
        path.write_text(text)
    cells_ = [one, *(cell(trace=str(path)) for path in files), cell(trace="generator:rag")]
    cells_ += [cell(rate=1.5), cell(policy="random"), cell(seed=7)]
    changes = [{"fleet": Fleet(3, one.setting.fleet.profile)}, {"slo": Slo(1.0, 1.0)}, {"window_s": 21.0}]
    for field in fields(Models):
        value = getattr(one.setting.models, field.name)
        changed = not value if isinstance(value, bool) else (value or 0) + 1
        changes.append({"models": replace(one.setting.models, **{field.name: changed})})
    cells_ += [replace(one, setting=replace(one.setting, **change)) for change in changes]
    assert len({digest(each) for each in cells_}) == len(cells_)


def test_a_profile_that_is_measured_again_is_another_digest(cell, tmp_path):
    path = tmp_path / "mine.toml"
    one = cell()
    found = []
    for text in ("a_ms = 1", "a_ms = 2"):
        path.write_text(text)
        cells._contents.cache_clear()
        found.append(digest(replace(one, setting=replace(one.setting, fleet=Fleet(2, str(path))))))
    assert found[0] != found[1]


def test_other_code_is_another_digest(cell, monkeypatch):
    before = digest(cell())
    monkeypatch.setattr(cells, "code_version", lambda: "other")
    assert digest(cell()) != before


NO_PART = ("loadtest.arguments", "loadtest.load", "router.errors", "router.metrics")
"""What a run loads besides: flags, what measures a live gateway, the words of errors, and counters."""


def test_the_code_is_that_of_everything_that_a_run_loads():
    assert len(cells.code_version()) == 12
    script = "import sys, loadtest.lab.run_cell; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    ours = [name for name in loaded if name.startswith(("backends.", "loadtest.", "policies.", "router."))]
    told = (*cells._WHAT_DECIDES, "policies", *NO_PART)
    left_out = [name for name in ours if not any(f"{name}.".startswith(f"{package}.") for package in told)]
    assert "loadtest.lab.run_cell" in ours and not left_out


RULE = """
from policies.params import Params
from policies.view import Decision

class Mine:
    def __init__(self, params, rng):
        pass

    def decide(self, request, fleet):
        return Decision(tuple(worker.id for worker in fleet.workers), "{reason}")
"""


@pytest.mark.parametrize("within", ["mine", "pack.mine"])
def test_a_rule_of_ones_own_counts_by_its_code(cell, tmp_path, monkeypatch, within):
    path = tmp_path / f"{within.replace('.', '/')}.py"
    path.parent.mkdir(exist_ok=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def written(reason):
        path.write_text(RULE.format(reason=reason))
        importlib.invalidate_caches()
        for name in (within, "pack"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(registry.BUILT_IN, "mine", importlib.import_module(within).Mine)
        cells._rule.cache_clear()
        return digest(cell(policy="mine"))

    first = written("in order")
    assert written("as they come") != first == written("in order")
    cells._rule.cache_clear()


def test_a_built_in_rule_counts_by_its_own_modules_and_those_of_all_rules(cell, monkeypatch):
    names, sources = ("lpwl", "marginal_cost"), cells._sources

    def changed_without(module):
        """Return the rules whose digest differs without the module."""
        found = []
        for left_out in (None, module):
            monkeypatch.setattr(
                cells, "_sources", lambda place, out=left_out: [] if place.name == out else sources(place)
            )
            cells._rule.cache_clear()
            found.append([digest(cell(policy=name)) for name in names])
        cells._rule.cache_clear()
        return {name for name, before, after in zip(names, *found, strict=True) if before != after}

    assert changed_without("marginal_cost") == {"marginal_cost"}
    assert changed_without("ranking.py") == changed_without("wrappers") == set(names)


def test_a_rule_without_a_file_counts_by_what_it_may_import(monkeypatch):
    made = cells._rule("lpwl")

    class Made:
        __module__ = "made"

    monkeypatch.setitem(registry.BUILT_IN, "made", Made)
    assert cells._rule("made") not in ("", made)
    cells._rule.cache_clear()
