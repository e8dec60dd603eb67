"""The results for people, for programs, and for a thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from router.picker.conformance.case import REFERENCES, CaseResult
from router.picker.conformance.cases import GROUPS
from router.picker.conformance.fixture import CaseProfile, Fixture
from router.picker.conformance.outcome import Requirement, Verdict


def conforms(results: Sequence[CaseResult]) -> bool:
    """Whether no case of level MUST failed, and some case passed."""
    return not _failed(results) and any(one.verdict is Verdict.PASS for one in results)


def _failed(results: Iterable[CaseResult]) -> list[CaseResult]:
    return [one for one in results if one.verdict is Verdict.FAIL and one.case.requirement is Requirement.MUST]


def line(result: CaseResult) -> str:
    """Return one line for a terminal."""
    about = f"{result.verdict:4}  {result.id:4} {result.case.requirement:6} {result.case.title}"
    return f"{about}\n{'':17}{result.detail}" if result.detail and result.verdict is not Verdict.PASS else about


def totals(results: Sequence[CaseResult]) -> list[str]:
    """Return the last lines for a terminal."""
    lines = [""]
    for profile, level, *counts in _summary_rows(results):
        said = ", ".join(f"{count} {verdict}" for count, verdict in zip(counts, Verdict, strict=True))
        lines.append(f"{profile:9} {level:6} {said}")
    return [*lines, "", f"The picker {_judged(results)}."]


def _judged(results: Sequence[CaseResult]) -> str:
    if conforms(results):
        return "conforms: no case of level MUST failed"
    return "does not conform" if _failed(results) else "was not tested: no case passed"


def summary(results: Sequence[CaseResult]) -> dict[str, dict[str, dict[str, int]]]:
    """Return how many cases of each profile and level passed, failed and were skipped."""
    counts = Counter((one.case.profile, one.case.requirement, one.verdict) for one in results)
    return {
        profile.value: {
            level.value: {verdict.value: counts[profile, level, verdict] for verdict in Verdict}
            for level in Requirement
            if any(counts[profile, level, verdict] for verdict in Verdict)
        }
        for profile in CaseProfile
        if any(one.case.profile is profile for one in results)
    }


def document(fixture: Fixture, results: Sequence[CaseResult], version: str) -> dict[str, Any]:
    return {
        "suite": f"warmroute {version}",
        "target": fixture.target,
        "tls": fixture.tls,
        "endpoints": list(fixture.endpoints),
        "profiles": [profile.value for profile in CaseProfile if profile in fixture.profiles],
        "conforms": conforms(results),
        "summary": summary(results),
        "cases": [_case(result) for result in results],
    }


def _case(result: CaseResult) -> dict[str, Any]:
    case = result.case
    return {
        "id": result.id,
        "title": case.title,
        "ref": case.reference,
        "level": case.requirement.value,
        "profile": case.profile.value,
        "result": result.verdict.value,
        "detail": result.detail,
        "ms": round(result.duration_ms, 1),
    }


def markdown(fixture: Fixture, results: Sequence[CaseResult], version: str) -> str:
    lines = [
        f"# Endpoint picker at {fixture.target}",
        "",
        f"Result: the picker {_judged(results)}. Suite: `warmroute picker-conformance` {version}.",
        "",
        *_rows(("profile", "level", "pass", "fail", "skip"), _summary_rows(results)),
        "",
    ]
    for group in GROUPS:
        of_group = [result for result in results if result.case in group.cases]
        if of_group:
            lines += [f"## {group.letter}. {group.title}", "", *_rows(_HEADS, map(_row, of_group)), ""]
    lines += ["References:", "", *(f"- {letter}: {meaning}" for letter, meaning in REFERENCES.items())]
    return "\n".join(lines) + "\n"


_HEADS = ("case", "level", "result", "what a picker does", "reference", "detail", "ms")


def _row(result: CaseResult) -> tuple[str, ...]:
    case = result.case
    shown = f"**{result.verdict.value}**" if result.verdict is Verdict.FAIL else result.verdict.value
    ms = "" if result.verdict is Verdict.SKIP else f"{result.duration_ms:.0f}"
    return result.id, case.requirement.value, shown, case.title, case.reference, result.detail, ms


def _summary_rows(results: Sequence[CaseResult]) -> Iterable[tuple[str, ...]]:
    for profile, levels in summary(results).items():
        for level, counts in levels.items():
            yield profile, level, *(str(counts[verdict.value]) for verdict in Verdict)


def _rows(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(map(_cell, row)) + " |" for row in cells]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", r"\|").split())
