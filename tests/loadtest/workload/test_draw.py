from statistics import quantiles

import pytest

from loadtest.workload.draw import FIRST_FRESH_ID, LONGEST, Draws, stream


def test_each_purpose_has_a_stream_of_its_own():
    assert stream(1, "a").random() == stream(1, "a").random()
    assert len({stream(seed, purpose).random() for seed in (1, 11) for purpose in ("a", "1: a")}) == 4
    assert stream(7, "worker speed").random() == pytest.approx(0.1707878965142321), "the same on every machine"


def test_fresh_text_occurs_nowhere_else():
    draws = Draws(stream(0, "test"))
    pieces = [draws.piece(5) for _ in range(100)]
    assert len(set(pieces)) == 100 and all(FIRST_FRESH_ID <= id_ < 2**63 and tokens == 5 for id_, tokens in pieces)


def test_a_log_normal_draw_has_the_percentiles_asked_for():
    draws = Draws(stream(0, "test"))
    drawn = [draws.around(0.3, 13.6) for _ in range(20_000)]
    deciles = quantiles(drawn, n=10)
    assert deciles[4] == pytest.approx(0.3, rel=0.06) and deciles[8] == pytest.approx(13.6, rel=0.08)
    assert max(drawn) == LONGEST * 13.6
    assert draws.around(5.0, 5.0) == 5.0
    assert min(draws.tokens(1, 4) for _ in range(500)) == 1
    assert {draws.between(1, 3) for _ in range(100)} == {1, 2, 3}
