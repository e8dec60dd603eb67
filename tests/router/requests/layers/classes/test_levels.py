from types import SimpleNamespace

import pytest

from router.placement.admission.classes import Claim, RequestClass
from router.placement.request import Usage
from router.requests.layers.classes.levels import LATE_KEPT, ClassLevels, LevelLayer

CHAT = RequestClass("chat", ttft_s=1.0, tpot_s=0.1)
PLAIN = RequestClass("plain")


def ended(
    levels, of=CHAT, *, waited_s=0.0, at_worker_s=0.5, tokens=11, seconds=1.5, status=200, answered=True, last=None
):
    request = SimpleNamespace(claim=Claim(of), arrived_s=100.0, request=object())
    ticket = SimpleNamespace(
        record=SimpleNamespace(ttft_s=at_worker_s), reservation=SimpleNamespace(at_s=100.0 + waited_s)
    )
    usage = Usage(10, tokens)
    end = SimpleNamespace(
        ticket=last or ticket, usage=usage, answered=usage if answered else None, status=status, duration_s=seconds,
        ttft_s=None if at_worker_s is None else waited_s + at_worker_s,
    )  # fmt: skip
    layer = LevelLayer(levels, request)
    layer.response_lines(ticket)
    layer.response_lines(end.ticket)
    layer.ended(end)


def counted(levels):
    return {labels[1:]: count for _, labels, count in levels.readings()}


def test_streams_count_by_target_and_whether_they_met_it():
    levels = ClassLevels([CHAT, PLAIN])
    ended(levels)  # 0.5 s to the first token, then 0.1 s per token
    ended(levels, waited_s=0.6, seconds=3.1)  # 1.1 s, then 0.2 s
    ended(levels, answered=False)  # its client has left, with a first token
    ended(levels, PLAIN, waited_s=9.0)
    expected = {("ttft", "true"): 2, ("ttft", "false"): 1, ("tpot", "true"): 1, ("tpot", "false"): 1}
    assert counted(levels) == expected


@pytest.mark.parametrize("last_s", [0.3, None])
def test_a_stream_that_went_on_elsewhere_counts_by_its_first_worker(last_s):
    """Its last worker began after 60 s, or died before its first token."""
    last = SimpleNamespace(record=SimpleNamespace(ttft_s=last_s), reservation=SimpleNamespace(at_s=160.0))
    levels = ClassLevels([CHAT])
    ended(levels, waited_s=0.1, tokens=1_001, seconds=80.5, last=last)
    assert counted(levels) == {("ttft", "true"): 1, ("ttft", "false"): 0, ("tpot", "true"): 1, ("tpot", "false"): 0}


def test_a_target_that_a_class_has_not_is_not_counted():
    levels = ClassLevels([RequestClass("chat", ttft_s=1.0)])
    ended(levels)
    assert counted(levels) == {("ttft", "true"): 1, ("ttft", "false"): 0} and not ClassLevels([PLAIN])


@pytest.mark.parametrize(
    ("waited_s", "at_worker_s", "said"),
    [
        (
            2.0,
            0.5,
            "took 2 s before they went to a worker and 0.5 s there (slo.ttft 1 s): they waited for room; 7 s of",
        ),
        (0.4, 0.9, "mostly the worker, whose own queue, batch and prefill are not told apart"),
        (0.1, 3.0, "the worker alone takes longer, and no order of the queue changes that"),
    ],
)
def test_late_streams_say_where_their_time_went(waited_s, at_worker_s, said):
    levels = ClassLevels([CHAT])
    for _ in range(LATE_KEPT + 5):
        ended(levels, waited_s=waited_s, at_worker_s=at_worker_s, answered=False)
    why = levels.reasons({"chat": 3.0, "batch": 7.0})["chat"]
    assert why.startswith(f"its last {LATE_KEPT} late streams took") and said in why


def test_what_nobody_saw_is_said_beside_what_is_known():
    levels = ClassLevels([CHAT])
    ended(levels, at_worker_s=None)
    assert levels.reasons({}) == {}, "no stream is known to be late"
    ended(levels, seconds=5.5)
    assert levels.reasons({})["chat"] == (
        "its last 1 slow streams took 0.5 s per token: the batch of their worker; 1 answers are not counted, because "
        "nobody saw their first token"
    )
