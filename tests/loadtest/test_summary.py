from loadtest.load.seen import Kind, Seen
from loadtest.report.summary import percentile, summarise


def test_percentile_interpolates():
    assert percentile([], 0.5) == 0
    assert percentile([3.0], 0.99) == 3.0
    assert percentile([1, 2, 3, 4], 0.5) == 2.5


def test_failed_requests_count_as_errors_and_nowhere_else():
    good = Seen(0.0, Kind.COMPLETE, stamps_s=[0.1, 1.1], prompt_tokens=100, cached_tokens=80, completion_tokens=11)
    bad = Seen(0.0, prompt_tokens=1000)
    row = summarise("rule", [good, bad])
    assert (row.requests, row.errors) == (2, 1)
    assert row.ttft_mean_ms == 100
    assert round(row.tpot_p50_ms, 6) == 100
    assert row.cached_share == 0.8
    assert row.prefill_tokens == 20
