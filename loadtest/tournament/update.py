"""Play rules of a finished tournament again, at its load 1.0, loads and seeds, and keep the rows of its other rules."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadtest.lab.run import Refused
from loadtest.tournament import scores
from loadtest.tournament.contests import CONTESTS, Contest
from loadtest.tournament.scores import Scores, Workload


def read(path: Path) -> Scores:
    """Return the scores that are to be updated.

    Raises:
        Refused: there is no such file, or it is something else.
    """
    try:
        return scores.read(path)
    except OSError as error:
        raise Refused(f"--update {path} cannot be read: {os.strerror(error.errno or errno.EIO)}") from None
    except msgspec.DecodeError as error:
        raise Refused(
            f"--update {path} is not a results.json of this version of `python -m loadtest tournament`: {error}"
        ) from None


def contests(before: Scores) -> list[Contest]:
    """Return the file's contests.

    Raises:
        Refused: one of them is declared otherwise today, so new rows would not compare with the old ones.
    """
    today = {contest.name: contest for contest in CONTESTS}
    for workload in before.workloads:
        contest = today.get(workload.name)
        if contest is None or not _same(contest, workload):
            raise Refused(
                f"--update: workload {workload.name} was played with another trace, fleet, service level or block"
                " size than today's; hold a whole tournament"
            )
    return [today[workload.name] for workload in before.workloads]


def _same(contest: Contest, workload: Workload) -> bool:
    alike = workload.trace.startswith(contest.trace) if contest.recorded else workload.trace == contest.trace
    fleet, slo = contest.fleet, contest.slo
    return alike and (fleet.workers, fleet.profile, slo.ttft_ms, slo.tpot_ms, contest.block_tokens) == (
        workload.workers,
        workload.profile,
        workload.ttft_ms,
        workload.tpot_ms,
        workload.block_tokens,
    )


def updated(before: Scores, played: Scores) -> Scores:
    """Return the file's scores with the rows of the rules that have been `played`."""
    names = list(dict.fromkeys([*before.policies, *played.policies]))
    return msgspec.structs.replace(
        before,
        again=[*before.again, played.asked],
        code=before.code | played.code,
        policies=names,
        workloads=[_updated(*both, names) for both in zip(before.workloads, played.workloads, strict=True)],
    )


def _updated(before: Workload, played: Workload, policies: Sequence[str]) -> Workload:
    """Return a workload with the rows of both, in the order of a tournament that plays all rules."""
    rows = {(row.load, row.policy): row for row in [*before.rows, *played.rows]}
    ordered = [rows[load, policy] for load in before.loads for policy in policies]
    return msgspec.structs.replace(before, rows=ordered)
