"""Pipelined requests that the gateway itself answers, on connections whose clients never read (D1)."""

import pytest

from loadtest.soak.attack.clients import FLOODS, flood

pytestmark = [pytest.mark.slow, pytest.mark.measures]
MB = 1_000_000
SECONDS = 2.0


@pytest.mark.parametrize(("kind", "connections"), [*((kind, 1) for kind in FLOODS), ("livez", 8), ("unauthorized", 8)])
def test_answers_that_nobody_reads_stall_nobody_and_take_no_memory(bench, bars, kind, connections):
    row = bench.row(
        f"{kind} pipelined on {connections}, never read",
        lambda: flood(bench.address, kind, connections, SECONDS),
        0,
        bars(spare_bytes=(16 + 2 * connections) * MB),
    )
    assert row.sent > 0
