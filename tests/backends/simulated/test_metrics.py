import math

from hypothesis import given
from hypothesis import strategies as st

from backends.simulated.metrics import TokenHistogram
from backends.vllm.histogram_bounds import length_bounds


def test_length_bounds():
    assert length_bounds(1) == (1,)
    assert length_bounds(100) == (1, 2, 5, 10, 20, 50, 100)
    assert length_bounds(131_072)[-1] == 100_000


@given(st.lists(st.floats(0, 20)))
def test_a_histogram_counts_like_prometheus(values):
    bounds = (1.0, 5.0, 10.0)
    distribution = TokenHistogram("d", "A test.", bounds)
    for value in values:
        distribution.observe(value)
    samples = {
        (sample.name, sample.labels.get("le")): sample.value for sample in distribution.family({"engine": "0"}).samples
    }
    for bound in bounds:
        assert samples["d_bucket", str(bound)] == sum(value <= bound for value in values)
    assert samples["d_bucket", "+Inf"] == samples["d_count", None] == len(values)
    assert math.isclose(samples["d_sum", None], sum(values))
