"""docs/reference/limits.md has a row for every limit."""

import re

import pytest

from docs.build.limits import FIXED, SETTINGS, setting_rows, settings_that_bound
from router.errors import ErrorKind

CODES = {kind.spec.code: kind.spec.status for kind in ErrorKind}


def test_every_setting_that_bounds_something_has_a_row():
    missing = sorted(set(settings_that_bound()) - set(SETTINGS))
    assert not missing, f"add a line for each to SETTINGS (or NOT_LIMITS) in docs/build/limits.py: {missing}"


def test_every_row_is_of_a_setting():
    assert [row[0] for row in setting_rows()] == [f"`{path}`" for path in SETTINGS]


@pytest.mark.parametrize("path", ["limits.max_connections", "timeouts.connect_s", "residency.memo_bytes"])
def test_limits_are_found_by_section_and_by_name(path):
    assert path in set(settings_that_bound())


def test_statuses_and_codes_are_those_of_the_catalogue():
    texts = [sees for _, sees in SETTINGS.values()] + [fixed.client_sees for fixed in FIXED]
    named = [pair for text in texts for pair in re.findall(r"(\d{3}) `(\w+)`", text)]
    assert len(named) > 10
    assert {(status, code) for status, code in named if CODES.get(code) != int(status)} == set()
