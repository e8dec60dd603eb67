from __future__ import annotations

import pytest

from router.picker.translate.quantities import seconds, whole


@pytest.mark.parametrize(
    ("value", "number"),
    [(5, 5), ("5", 5), ("1k", 1_000), ("1Ki", 1_024), ("1.5Gi", 3 << 29), ("500M", 500_000_000), ("1500m", 2), ("0", 0)]
    + [(value, None) for value in ("", "x", "1 k", "-1", "1K", True, 1.5, None, [], "9999999E", 10**30)],
)
def test_a_quantity_of_kubernetes(value: object, number: int | None) -> None:
    assert whole(value) == number


@pytest.mark.parametrize(
    ("value", "number"),
    [("300s", 300.0), ("1m30s", 90.0), ("250ms", 0.25), ("1.5h", 5_400.0), ("0s", 0.0), ("0", 0.0), ("5µs", 5e-6)]
    + [(value, None) for value in ("", "5", "s", "-1s", "1d", 5, None, "1s ")],
)
def test_a_duration_of_go(value: object, number: float | None) -> None:
    assert seconds(value) == number
