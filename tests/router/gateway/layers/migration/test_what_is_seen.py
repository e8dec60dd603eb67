"""What operators and clients see of an answer that goes on at another worker, or cannot."""

import pytest

from tests.router.gateway.layers.migration.test_migration import ANSWER, CHAT, ROUTES, body_of, events_of, text_of
from tests.support.answers import silent
from tests.support.raw_client import post
from tests.support.token_worker import TokenWorker
from tests.support.waiting import eventually

ASKS = b"x-warmroute-receipt: 1\r\n"
AT = 9
"""The token at which the worker dies. The one before it ends a character."""
KEPT = len(ANSWER.encode()[:AT].decode(errors="ignore").encode())


def readings(gate):
    found = {labels[0]: count for name, labels, count in gate.gateway.readings() if "migration_requests" in name}
    return {reason: count for reason, count in found.items() if count}


async def test_the_log_and_the_receipts_show_both_legs(rig):
    first, second = TokenWorker(ANSWER, AT, name="w"), TokenWorker(ANSWER, name="other")
    gate = await rig(first, second, routes=ROUTES, headers={"receipt": "all"})
    reply = await gate.ask(post(body=body_of(), extra=ASKS))
    assert text_of(events_of(reply)) == ANSWER
    lost, other = [worker.id for worker in gate.workers]
    later, earlier = [record.to_builtins() for record in gate.core.log.latest(2)]
    seam = {
        "trigger": "cut", "from_worker": lost, "to_worker": other, "kept_tokens": KEPT, "outcome": "resumed"
    }  # fmt: skip
    assert [(one["worker"], one["migration"], one["seams"]) for one in (earlier, later)] == [
        (lost, "tracked", [seam]), (other, "tracked", [seam])
    ]  # fmt: skip
    assert b"migration=tracked" in reply.header(b"x-warmroute-receipt")
    (comment,) = [line for line in reply.body.split(b"\n\n") if line.startswith(b": x-warmroute-receipt: ")]
    assert b"trigger=cut, kept-tokens=%d" % KEPT in comment


async def test_nobody_who_does_not_ask_gets_a_receipt_at_the_seam(rig):
    gate = await rig(TokenWorker(ANSWER, AT), TokenWorker(ANSWER, name="other"), routes=ROUTES)
    assert b"receipt" not in (await gate.ask(post(body=body_of()))).body


@pytest.mark.parametrize(("ids", "outcome"), [(True, "left"), (False, "no_ids")])
async def test_the_log_says_why_an_answer_ended_at_its_seam(rig, ids, outcome):
    gate = await rig(TokenWorker(ANSWER, AT, ids=ids), silent, routes=ROUTES)
    client = await gate.send(post(body=body_of()))
    await eventually(lambda: len(gate.workers[ids].requests) == 1)
    if ids:
        client.writer.transport.abort()
    await eventually(lambda: gate.idle)
    (seam,) = gate.core.log.latest(2)[-1].seams
    assert (seam.outcome, seam.to_worker) == (outcome, gate.workers[1].id if ids else None)


async def test_a_whole_answer_without_ids_counts_as_one_that_could_not_go_on(rig):
    gate = await rig(TokenWorker(ANSWER, ids=False), routes=ROUTES)
    await gate.ask(post(body=body_of()))
    assert readings(gate) == {"tracked": 1, "no_ids": 1}
    assert gate.core.log.latest(1)[0].migration == "no_ids"


@pytest.mark.parametrize(
    ("more", "routes", "expected"),
    [
        ({}, ROUTES, {"reason": None, "limit": 1, "drain_after_s": None}),
        ({"stream": False}, ROUTES, {"reason": "whole_answer", "limit": 1, "drain_after_s": None}),
        ({}, [], None),
    ],
)
async def test_a_preview_says_whether_an_answer_could_go_on(rig, more, routes, expected):
    gate = await rig(TokenWorker(ANSWER), routes=routes)
    found = await gate.gateway.preview(CHAT.decode(), {}, body_of(**more))
    assert found.features.get("migration") == expected
