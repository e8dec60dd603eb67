"""A request that has ended is freed at once, with its body: no reference cycle waits for the garbage collector."""

import asyncio
import gc
import json
import logging
from operator import attrgetter

import pytest

from policies.spec import PolicySpec
from policies.view import Decision
from router.gateway.flow.outbound import OutboundRequest
from tests.support.answers import STREAM_HEAD, answer_json, answer_stream, chunk, dying, event, json_head, saying, says
from tests.support.raw_client import post
from tests.support.waiting import eventually

UNSERVED = json.dumps({"error": {"message": "no", "type": "NotFoundError", "param": "model", "code": 404}}).encode()


def status(line, body=b"{}"):
    return says(json_head(len(body), line), body)


begins, dies, silent = saying(STREAM_HEAD, chunk(event("a"))), dying(), saying()


def unreachable(gate):
    gate.join("http://127.0.0.1:1")


def identified_later(gate):
    gate.identity.later = asyncio.Event()


class Holding:
    def decide(self, request, fleet):
        return Decision(tuple(view.id for view in fleet.workers), "held", hold_s=60.0)


def holds(gate):
    gate.core.policies.default.adopt(Holding(), PolicySpec("holding"))


def broken(part, method):
    def setup(gate):
        def fail(*arguments, **options):
            raise ArithmeticError("a defect")

        setattr(attrgetter(part)(gate), method, fail)

    return setup


ENDINGS = {
    "answered": {"scripts": [answer_json]},
    "streamed": {"scripts": [answer_stream]},
    "invalid": {"body": b'{"model": 1, "messages": []}'},
    "nested too deeply": {"body": b'{"messages": ' + b"[" * 100_000},
    "400 passed on": {"scripts": [status(b"400 Bad Request")]},
    "model unserved": {"scripts": [status(b"404 Not Found", UNSERVED)] * 2},
    "500 passed on": {"scripts": [status(b"500 Oops")]},
    "retried": {"scripts": [status(b"503 Busy"), answer_stream]},
    "all attempts failed": {"scripts": [dies] * 2},
    "unreachable": {"setup": unreachable},
    "stream broken": {"scripts": [dying(STREAM_HEAD, chunk(event("a")))]},
    "stream stalled": {"scripts": [begins], "timeouts": {"stream_idle_s": 0.1}},
    "first event late": {"scripts": [silent], "timeouts": {"first_event_s": 0.1}},
    "time up": {"scripts": [silent], "timeouts": {"total_s": 0.1}},
    "time up after comments": {"scripts": [silent], "timeouts": {"header_delay_s": 0.05, "total_s": 0.1}},
    "queue expired": {"timeouts": {"queue_s": 0.1}},
    "defect when read": {"setup": broken("identity", "identify_now")},
    "defect when placed": {"setup": broken("core.dispatcher", "dispatch")},
    "defect when retried": {"scripts": [dies], "setup": broken("core.dispatcher", "retry")},
    "defect at the end": {"scripts": [answer_stream], "setup": broken("core.tickets", "finished")},
}


def requests_in_memory():
    # not by weak references, because objects of compiled classes have none
    return [found for found in gc.get_objects() if type(found) is OutboundRequest]


@pytest.fixture
def freed(monkeypatch):
    """`await freed()` waits until no request of this test is in memory. The garbage collector is off."""
    monkeypatch.setattr(logging.getLogger("warmroute.gateway"), "disabled", True)  # pytest keeps tracebacks of defects
    gc.collect()
    gc.disable()
    # Tracebacks that pytest keeps can hold requests of other tests. The list keeps them, so that no identity is reused.
    earlier = requests_in_memory()
    known = {id(found) for found in earlier}

    async def wait():
        await eventually(lambda: all(id(found) in known for found in requests_in_memory()))

    yield wait
    gc.enable()


@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_answered_request_leaves_no_cycle(rig, freed, ending):
    case = dict(ENDINGS[ending])
    scripts, setup, body = case.pop("scripts", ()), case.pop("setup", None), case.pop("body", None)
    gate = await rig(*scripts, **case)
    if setup is not None:
        setup(gate)
    for _ in range(2):  # the quarantine refuses the second request after lost workers when it is placed
        await gate.ask(post() if body is None else post(body=body))
        await freed()


WAITS = {
    "identifying": ([silent], identified_later, lambda gate: gate.gateway.statistics()["streams"]),
    "queued": ([], None, lambda gate: gate.gateway.statistics()["queued"]),
    "held": ([silent], holds, lambda gate: gate.gateway.statistics()["held"]),
    "waiting": ([silent], None, lambda gate: gate.workers[0].requests),
    "streaming": ([begins], None, lambda gate: "first_token" in gate.recorded.events),
}


@pytest.mark.parametrize("state", WAITS)
async def test_a_request_whose_client_left_leaves_no_cycle(rig, freed, state):
    scripts, setup, reached = WAITS[state]
    gate = await rig(*scripts)
    if setup is not None:
        setup(gate)
    client = await gate.send(post())
    await eventually(lambda: reached(gate))
    client.leave()
    await freed()
