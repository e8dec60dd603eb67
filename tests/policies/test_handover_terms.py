import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.handover_cost import alone_s, pair_s
from policies.handover_terms import TERMS, alone_terms, pair_terms
from tests.policies.test_handover_cost import fleet

SECONDS = st.floats(0.0, 100.0)
WORKER = st.fixed_dictionaries(
    {
        "queue_wait_s": SECONDS,
        "prefill_s": SECONDS,
        "error_s": SECONDS,
        "kv_wait_s": SECONDS,
        "decode_externality_s": SECONDS,
        "utilisation": st.floats(0.0, 0.97),
        "running_requests": st.integers(0, 500),
        "uncached_tokens": st.integers(1, 100_000),
    }
)
FLEET = st.lists(WORKER, min_size=1, max_size=3)


@given(FLEET)
def test_the_terms_of_one_worker_add_up(workers):
    view = fleet(*workers)
    for place, cost_s in enumerate(alone_s(view)):
        terms = alone_terms(view, place)
        assert sum(terms.values()) == pytest.approx(cost_s)
        assert set(terms) <= set(TERMS)


@given(FLEET, FLEET, st.floats(1.0, 1e6), SECONDS)
def test_the_terms_of_a_pair_add_up(senders, receivers, tokens_per_s, latency_s):
    prefill, decode = fleet(*senders), fleet(*receivers)
    costs_s = pair_s(prefill, decode, tokens_per_s, latency_s)
    for row in range(len(senders)):
        for column in range(len(receivers)):
            moved_s = latency_s + float(decode.uncached_tokens[column]) / tokens_per_s
            terms = pair_terms(prefill, decode, row, column, moved_s)
            assert sum(terms.values()) == pytest.approx(costs_s[row, column])
            assert set(terms) <= set(TERMS)


def test_streams_of_the_prefill_worker_are_a_term_of_their_own():
    busy, decode = fleet({"running_requests": 20}), fleet({})
    without, with_streams = (pair_terms(busy, decode, 0, 0, 0.1, streams=streams) for streams in (False, True))
    assert "stalled_s" not in without
    assert with_streams["stalled_s"] == pytest.approx(0.1 * 0.5 * 20)
