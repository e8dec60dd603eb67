"""The priority of a class in the bodies that workers get."""

import pytest

from tests.support.answers import answer_json, answer_stream, json_head
from tests.support.busy_worker import named
from tests.support.raw_client import post

CLASSES = {"chat": {"engine_priority": -5}, "batch": {"engine_priority": 10, "share": 0.0}, "plain": {}}
PLAIN = b'{"model":"m","messages":[],"stream":true}'


def with_priority(body, number):
    return body[:-1] + b',"priority":%d}' % number


@pytest.mark.parametrize(
    ("of", "body", "allow", "expected"),
    [
        (b"chat", PLAIN, ["priority"], with_priority(PLAIN, -5)),
        (b"batch", PLAIN, ["priority"], with_priority(PLAIN, 10)),
        (b"plain", PLAIN, ["priority"], PLAIN),
        (b"chat", with_priority(PLAIN, 3), ["priority"], with_priority(PLAIN, 3)),
        (b"batch", with_priority(PLAIN, 0), [], with_priority(with_priority(PLAIN, 0), -5)),
    ],
    ids=["first", "later", "without", "own", "own of a caller that may send none"],
)
async def test_a_worker_gets_the_priority_of_the_class(rig, of, body, allow, expected):
    made = await rig(answer_stream, classes=CLASSES, auth={"allow": allow}, observe_usage=0)
    assert (await made.ask(post(body=body, extra=named(of)))).status == 200
    assert made.workers[0].requests[0].body == expected


@pytest.mark.parametrize(("path", "extra"), [(b"/v1/messages", b""), (b"/v1/chat/completions", b"Digest: x\r\n")])
async def test_messages_and_signed_bodies_stay_as_they_came(rig, path, extra):
    made = await rig(answer_stream, classes=CLASSES, observe_usage=0)
    assert (await made.ask(post(path, body=PLAIN, extra=extra))).status == 200
    assert made.workers[0].requests[0].body == PLAIN


async def refusing(script):
    """Answer as vLLM does without --scheduling-policy priority."""
    if b'"priority"' in script.seen.body or b'"bad"' in script.seen.body:
        await script.say(json_head(2, b"400 Bad Request"), b"{}")
    else:
        await answer_json(script)


async def test_a_worker_that_refuses_priorities_is_asked_once(rig):
    made = await rig(refusing, classes=CLASSES, observe_usage=0)
    for _ in range(2):
        assert (await made.ask(post(body=b'{"model":"m","messages":[]}'))).status == 200
    assert [b"priority" in one.body for one in made.workers[0].requests] == [True, False, False]
    assert made.gateway.statistics()["engine_priority"]["refused_by"] == [made.fleet.endpoints[0].id]
    assert made.counted("attempt_failures") == []


async def test_the_clients_own_mistake_says_nothing_about_priorities(rig):
    made = await rig(refusing, classes=CLASSES, observe_usage=0)
    assert (await made.ask(post(body=b'{"model":"m","messages":[],"user":"bad"}'))).status == 400
    assert made.gateway.statistics()["engine_priority"]["refused_by"] == []
