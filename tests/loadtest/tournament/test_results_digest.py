import argparse
import subprocess
import sys

import msgspec
import pytest

from loadtest.tournament.results_digest import results_digest, run
from loadtest.tournament.scores import Row, write


@pytest.fixture
def digest(tmp_path):
    def of(scores):
        path = tmp_path / "results.json"
        write(path, scores)
        return results_digest(path.read_bytes())

    return of


def changed_row(scores, **changes):
    first, *rest = scores.workloads
    rows = [msgspec.structs.replace(first.rows[0], **changes), *first.rows[1:]]
    return msgspec.structs.replace(scores, workloads=[msgspec.structs.replace(first, rows=rows), *rest])


def renamed(scores):
    """Every rule, measure, workload and trace under another name, at another time, by other code."""
    workloads = [
        msgspec.structs.replace(
            one,
            name=f"new-{one.name}",
            title=f"new {one.title}",
            trace=f"{one.trace}:changed=1",
            rows=[
                Row(f"{row.policy}:new=1", row.load, row.calls, {f"new_{name}": of for name, of in row.values.items()})
                for row in one.rows
            ],
        )
        for one in scores.workloads
    ]
    policies = [f"{name}:new=1" for name in scores.policies]
    code = dict.fromkeys(policies, "other")
    return msgspec.structs.replace(scores, workloads=workloads, policies=policies, code=code, asked="other")


def test_names_code_and_command_do_not_change_the_digest(scores, digest):
    assert digest(renamed(scores)) == digest(scores)


def test_one_changed_seed_changes_the_digest(scores, digest):
    row = scores.workloads[0].rows[0]
    values = row.values | {"ttft_mean_ms": [*row.values["ttft_mean_ms"][:-1], 100.001]}
    assert digest(changed_row(scores, values=values)) != digest(scores)


def test_another_order_of_seeds_changes_the_digest(scores, digest):
    row = scores.workloads[0].rows[0]
    values = [row.values | {"ttft_mean_ms": seeds} for seeds in ([1.0, 2.0, 3.0], [2.0, 1.0, 3.0])]
    first, second = (digest(changed_row(scores, values=one)) for one in values)
    assert first != second


def test_another_load_changes_the_digest(scores, digest):
    assert digest(changed_row(scores, load=0.55)) != digest(scores)


def test_another_load_1_changes_the_digest(scores, digest):
    first, *rest = scores.workloads
    other = msgspec.structs.replace(first, load_1_calls_per_s=first.load_1_calls_per_s + 0.1)
    assert digest(msgspec.structs.replace(scores, workloads=[other, *rest])) != digest(scores)


def test_a_file_that_is_no_results_json_is_refused_by_name(tmp_path, capsys):
    path = tmp_path / "cells.json"
    path.write_text('{"cells": []}')
    assert run(argparse.Namespace(file=path)) == 2
    assert f"{path} is not a results.json" in capsys.readouterr().err


def test_a_missing_file_is_refused_by_name(tmp_path, capsys):
    path = tmp_path / "results.json"
    assert run(argparse.Namespace(file=path)) == 2
    assert f"{path} cannot be read: No such file or directory" in capsys.readouterr().err


def test_the_command_prints_the_digest_of_the_file(scores, tmp_path):
    path = tmp_path / "results.json"
    write(path, scores)
    command = [sys.executable, "-m", "loadtest", "results-digest", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == results_digest(path.read_bytes()) + "\n"
