import argparse
import subprocess
import sys

import msgspec
import pytest

from loadtest.tournament.results_digest import results_digest, run
from loadtest.tournament.scores import Row, write


def digest(scores):
    return results_digest(msgspec.json.encode(scores))


def with_first(scores, row=None, **changes):
    """The scores with a changed first workload, or a changed first row of it."""
    first, *rest = scores.workloads
    if row is not None:
        changes["rows"] = [msgspec.structs.replace(first.rows[0], **row), *first.rows[1:]]
    return msgspec.structs.replace(scores, workloads=[msgspec.structs.replace(first, **changes), *rest])


def test_names_code_and_command_do_not_change_the_digest(scores):
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
    changes = {"workloads": workloads, "policies": policies, "code": "other", "asked": "other"}
    assert digest(msgspec.structs.replace(scores, **changes)) == digest(scores)


def test_every_value_and_the_order_of_seeds_change_the_digest(scores):
    first = scores.workloads[0]
    seeds = [
        {"values": first.rows[0].values | {"ttft_mean_ms": values}}
        for values in ([100.0, 100.0, 100.001], [1.0, 2.0, 3.0], [2.0, 1.0, 3.0])
    ]
    changed = [with_first(scores, row) for row in (*seeds, {"load": 0.55}, {"calls": 1})]
    changed.append(with_first(scores, load_1_calls_per_s=first.load_1_calls_per_s + 0.1))
    changed.append(with_first(scores, round_robin_calls_per_s=1.0))
    assert len({digest(scores), *map(digest, changed)}) == len(changed) + 1


@pytest.mark.parametrize(
    ("text", "says"), [('{"cells": []}', "is not a results.json"), (None, "cannot be read: No such file or directory")]
)
def test_a_file_that_is_no_results_json_is_refused_by_name(tmp_path, capsys, text, says):
    path = tmp_path / "cells.json"
    if text is not None:
        path.write_text(text)
    assert run(argparse.Namespace(file=path)) == 2
    assert f"{path} {says}" in capsys.readouterr().err


def test_the_command_prints_the_digest_of_the_file(scores, tmp_path):
    path = tmp_path / "results.json"
    write(path, scores)
    command = [sys.executable, "-m", "loadtest", "results-digest", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == results_digest(path.read_bytes()) + "\n"
