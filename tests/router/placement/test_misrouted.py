import random
from types import SimpleNamespace

import pytest

from policies.view import FleetView, Residency, WorkerView
from router.metrics.registry import Registry
from router.placement.comparison import Comparisons
from router.placement.learning.prediction_accuracy import PredictionAccuracy
from router.placement.metrics import PlacementMetrics
from router.placement.request import Request, Usage
from router.residency.prompt import Prompt, PromptSource
from tests.support.metrics import counted


def misroutes(reported, *elsewhere, predicted=64, place=0):
    """Whether a response counts, if `elsewhere` are the cached tokens predicted for the other candidates."""
    cached = [*elsewhere[:place], predicted, *elsewhere[place:]]
    views = tuple(
        WorkerView(f"h:{number}", Residency.EXACT, tokens, 100, 0, 0, 0, 0, 0.0, 0.0, 0.0)
        for number, tokens in enumerate(cached)
    )
    prompt = Prompt(164, PromptSource.IDS, lambda block: [random.randrange(9) for _ in range(164 // block)])
    registry = Registry()
    ticket = SimpleNamespace(
        id=1,
        residency=Residency.EXACT,
        predicted_cached_tokens=predicted,
        request=Request("r", "/v1/x", "m", prompt, 164, 0.0),
        candidate=SimpleNamespace(id=f"h:{place}", block_tokens=16),
        load=SimpleNamespace(accuracy=PredictionAccuracy()),
        record=SimpleNamespace(fleet=FleetView(0.0, views), reported_cached_tokens=None, difference=None),
    )
    Comparisons(PlacementMetrics(registry)).compare(ticket, Usage(164, 1, reported), None)
    misrouted = counted(registry, "misrouted_requests")
    assert misrouted in ([], [(f"h:{place}",)])
    return bool(misrouted)


@pytest.mark.parametrize(
    ("reported", "elsewhere", "expected"),
    [(16, (32, 0), True), (16, (0, 32), True), (16, (16, 0), False), (16, (), False), (64, (96,), False),
     (80, (96,), False)],
)  # fmt: skip
def test_a_request_is_misrouted_if_another_worker_was_predicted_to_have_more(reported, elsewhere, expected):
    assert misroutes(reported, *elsewhere) is expected
    assert misroutes(reported, *elsewhere, place=len(elsewhere)) is expected
