from collections import Counter

import pytest

from tests.conformance.vectors import answers, catalogue, deviations
from tests.conformance.vectors.answers import ANSWERS
from tests.conformance.vectors.catalogue import VECTORS
from tests.conformance.vectors.judge import judge, judge_answer
from tests.conformance.vectors.lane import SETTINGS, RecordingWorker, SpeakingWorker, send_all
from tests.conformance.vectors.pieces import PROBE, Vector
from tests.properties.strict import Message
from tests.support.waiting import eventually

SHOWN = 5
"""Most faults printed."""


def report(faults):
    return f"{len(faults)} faults, the first of them:\n" + "\n".join(faults[:SHOWN])


def expected(table):
    return {name: deviation.vectors for name, deviation in table.items()}


@pytest.fixture
async def gate(rig):
    """A gateway that forwards every path. After the test it holds no request."""
    gate = await rig(**SETTINGS)
    yield gate
    await eventually(lambda: gate.idle)
    assert gate.gateway.statistics()["buffered_body_bytes"] == 0


async def test_only_requests_that_a_strict_reader_accepts_are_forwarded(gate):
    worker = await RecordingWorker().start()
    gate.join(worker)
    vectors = [vector for family in VECTORS.values() for vector in family]
    got = await send_all(gate.address, {vector.number: vector.sent for vector in vectors})
    faults, found = [f"bytes that are no request: {raw[:300]!r}" for raw in worker.broken], Counter()
    for vector in vectors:
        verdict = judge(vector, got[vector.number], worker.kept.get(vector.number, ()))
        faults += [f"{vector.rule}: {vector.raw[:300]!r}: {fault}" for fault in verdict.faults]
        if verdict.refused is not None:
            found[deviations.of_request(verdict)] += 1
    worker.close()
    assert not faults, report(faults)
    assert dict(found) == expected(deviations.REQUESTS)


async def test_no_broken_response_passes_as_complete(gate):
    given = [answer for family in ANSWERS.values() for answer in family]
    worker = await SpeakingWorker(given).start()
    gate.join(worker)
    got = await send_all(gate.address, {answer.number: answer.asks + PROBE for answer in given})
    faults, found, looser = [], Counter(), Counter()
    for answer in given:
        verdict = judge_answer(answer, got[answer.number])
        if verdict.faults and (name := deviations.of_loose(answer)) is not None:
            looser[name] += 1
        else:
            faults += [f"{answer.rule}: {answer.raw[:300]!r}: {fault}" for fault in verdict.faults]
        if verdict.refused is not None:
            found[deviations.of_answer(answer, verdict.refused) or f"{answer.rule}: {answer.raw[:200]!r}"] += 1
    worker.close()
    assert not faults, report(faults)
    assert dict(found) == expected(deviations.ANSWERS)
    assert dict(looser) == expected(deviations.LOOSER)


def test_all_vectors_differ():
    assert catalogue.TOTAL > 6_500
    assert answers.TOTAL > 600
    assert len({vector.number for family in VECTORS.values() for vector in family}) == catalogue.TOTAL


# The judge itself: what a lenient gateway would do to one vector.

SMUGGLING = Vector(
    10_000,
    "TE.CL",
    b"POST /v/10000/a HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: xchunked\r\nContent-Length: 4\r\n\r\n"
    b"2c\r\nGET /v/10000/smuggled HTTP/1.1\r\nHost: gw\r\n\r\n\r\n0\r\n\r\n",
)
GOOD = Vector(10_000, "", b"POST /v/10000/a HTTP/1.1\r\nHost: gw\r\nContent-Length: 2\r\n\r\nhi")
REFUSED = b'HTTP/1.1 400 Bad Request\r\nContent-Length: 30\r\n\r\n{"error":{"message":"no: why"}}'
TAKEN = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
FORWARDED = Message(b"POST /v/10000/a HTTP/1.1", (b"Host: gw", b"Content-Length: 2"), b"hi", 0)
REFUSED = REFUSED.replace(b"30", b"31")


@pytest.mark.parametrize(
    ("vector", "got", "forwarded"),
    [
        (SMUGGLING, TAKEN * 2, (Message(b"GET /v/10000/smuggled HTTP/1.1", (b"Host: gw",), b"", 0),)),
        (SMUGGLING, TAKEN, ()),
        (SMUGGLING, b"", ()),
        (SMUGGLING, None, ()),
        (GOOD, TAKEN * 2, (FORWARDED, FORWARDED)),
        (GOOD, TAKEN * 2, (Message(FORWARDED.start, FORWARDED.lines, b"h", 0),)),
        (GOOD, TAKEN * 2, (Message(FORWARDED.start, (*FORWARDED.lines, b"TE: trailers"), b"hi", 0),)),
        (GOOD, TAKEN * 2, (Message(FORWARDED.start, (*FORWARDED.lines, b"X: y"), b"hi", 0),)),
        (GOOD, TAKEN * 2, ()),
        (GOOD, TAKEN * 3, (FORWARDED,)),
        (GOOD, TAKEN[:-1], (FORWARDED,)),
    ],
)
def test_the_judge_detects_a_fault(vector, got, forwarded):
    assert judge(vector, got, forwarded).faults


def test_the_judge_accepts_a_correct_exchange():
    assert judge(SMUGGLING, REFUSED, ()) == judge(GOOD, TAKEN * 2, (FORWARDED,))
    assert not judge(GOOD, TAKEN * 2, (FORWARDED,)).faults
    assert judge(GOOD, REFUSED, ()).refused.content == b"hi"
