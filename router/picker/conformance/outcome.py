"""How a case ends."""

from __future__ import annotations

from enum import StrEnum


class Requirement(StrEnum):
    """As in RFC 2119. A picker conforms if no case of level MUST fails."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"


class Verdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"


class CaseFailed(Exception):
    """The picker did not do what the case asks; the text says what it did."""


class CaseSkipped(Exception):
    """The case does not apply, or cannot be tried; the text says why."""


def expect(condition: object, detail: str) -> None:
    if not condition:
        raise CaseFailed(detail)
