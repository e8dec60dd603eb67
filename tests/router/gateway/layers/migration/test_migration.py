"""Answers that go on at another worker, over sockets."""

import asyncio
import dataclasses
import json

import pytest
from msgspec.structs import replace

from backends.worker import RankCache
from router.config.model import WorkerConfig
from router.control.running_gateway import describe
from router.control.state.desired_state import DesiredState, FoundWorker, live_settings
from router.gateway.layers.migration import drains
from router.placement.fleet import fleet
from router.requests.queues import gone_workers
from router.residency.prompt import Prompt, PromptSource
from tests.support.answers import END, STREAM, after, chunk, die, dying, in_turn, json_head, says, silent
from tests.support.busy_worker import named, unlike_prompts
from tests.support.gateway_rig import COMPILED, FACTS
from tests.support.raw_client import post
from tests.support.token_worker import DEATHS, PROMPT, Answering, TokenWorker
from tests.support.waiting import eventually

CHAT, TEXT = b"/v1/chat/completions", b"/v1/completions"
ANSWER = "Flüsse 河流 ok 🚀 end 日本"
STEPS = ((1,), (2, 1), (3, 1, 1))
ROUTES = [{"name": "default", "layers": {"migration": {"limit": 1}}}]


def body_of(path=CHAT, **more):
    asked = {"messages": [{"role": "user", "content": "x"}]} if path == CHAT else {"prompt": PROMPT}
    members = {"model": "m", "stream": True, "max_tokens": 500, "stream_options": {"include_usage": True}}
    return json.dumps(members | asked | more).encode()


def events_of(reply):
    lines = [line[6:] for line in reply.body.split(b"\n\n") if line.startswith(b"data: ")]
    assert lines[-1] == b"[DONE]" and lines.count(b"[DONE]") == 1
    return [json.loads(line) for line in lines[:-1]]


def text_of(events):
    choices = [event["choices"][0] for event in events if event.get("choices")]
    return "".join(one["text"] if "text" in one else one["delta"].get("content") or "" for one in choices)


def finishes(events):
    return [
        one["choices"][0]["finish_reason"]
        for one in events
        if one.get("choices") and one["choices"][0]["finish_reason"]
    ]


async def migrated(rig, first, second, path=CHAT, raw=None, **settings):
    gate = await rig(first, second, **({"routes": ROUTES} | settings))
    return gate, await gate.ask(raw or post(path, body_of(path)))


async def whole(rig, path=CHAT, body=None, answer=ANSWER):
    gate = await rig(TokenWorker(answer), routes=ROUTES)
    return events_of(await gate.ask(post(path, body or body_of(path))))


@pytest.mark.parametrize("path", [CHAT, TEXT], ids=["chat", "completions"])
@pytest.mark.parametrize("death", DEATHS)
async def test_the_client_sees_one_answer(rig, path, death):
    expected = await whole(rig, path)
    first, second = TokenWorker(ANSWER, 9, death, name="w"), TokenWorker(ANSWER, name="other")
    gate, reply = await migrated(rig, first, second, path)
    events = events_of(reply)
    assert text_of(events) == ANSWER
    assert finishes(events) == ["stop"]
    assert {(event["id"], event["created"]) for event in events} == {("cmpl-w", 1)}
    assert b"SECRET" not in reply.body and b'_ids":[' not in reply.body
    assert (
        events[-1]["usage"]["completion_tokens"] == len(ANSWER.encode()) == expected[-1]["usage"]["completion_tokens"]
    )
    assert events[-1]["usage"]["prompt_tokens"] == len(PROMPT)
    assert events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] <= len(PROMPT)
    assert gate.idle
    assert gate.counted("migrations") == [("cut" if death == "reset" else death, "resumed")]


@pytest.mark.parametrize("path", [CHAT, TEXT], ids=["chat", "completions"])
async def test_a_death_at_any_token_leaves_no_trace(rig, path):
    """Also within characters: there the second worker would print its prompt."""
    expected = await whole(rig, path)
    usage = expected[-1]["usage"]
    for at in range(len(ANSWER.encode())):
        first = TokenWorker(ANSWER, at, DEATHS[at % len(DEATHS)], per_event=STEPS[at % 3], name="w")
        gate, reply = await migrated(rig, first, TokenWorker(ANSWER, per_event=STEPS[at % 2], name="other"), path)
        events = events_of(reply)
        assert (at, text_of(events), finishes(events)) == (at, ANSWER, ["stop"])
        assert len({event["id"] for event in events}) == 1
        assert events[-1]["usage"]["total_tokens"] == usage["total_tokens"]
        assert b"SECRET" not in reply.body
        assert gate.idle


async def test_only_the_role_was_sent(rig):
    """The first worker dies after the role, which the gateway has passed on."""
    first, second = TokenWorker(ANSWER, 0, "reset", pause_s=0.1), TokenWorker(ANSWER, name="other")
    _, reply = await migrated(rig, first, second)
    events = events_of(reply)
    assert text_of(events) == ANSWER
    assert {event["id"] for event in events} == {"cmpl-w"}
    assert reply.body.count(b'"role"') == 1


@pytest.mark.parametrize("path", [CHAT, TEXT], ids=["chat", "completions"])
async def test_a_death_after_the_last_token_ends_the_stream(rig, path):
    """The finish reason is there, and the usage; only the mark of the end is missing."""
    events = list(Answering(TokenWorker(ANSWER), tracked_body(path), path == CHAT).events())

    async def dies(script):
        await script.say(STREAM)
        await script.say_apart(*map(chunk, events[:-1]))
        await script.die()

    gate = await rig(dies, TokenWorker(ANSWER), routes=ROUTES)
    seen = events_of(await gate.ask(post(path, body_of(path))))
    assert text_of(seen) == ANSWER and finishes(seen) == ["stop"]
    assert seen[-1]["usage"]["completion_tokens"] == len(ANSWER.encode())
    assert gate.counted("migrations") == [] and gate.workers[1].requests == []
    assert gate.recorded.events[-1] == "finished 200" and gate.idle


async def test_a_death_before_the_usage_is_an_error(rig):
    events = list(Answering(TokenWorker(ANSWER), tracked_body(CHAT), True).events())
    gate = await rig(dying(STREAM, *map(chunk, events[:-2])), TokenWorker(ANSWER), routes=ROUTES)
    assert error_of(await gate.ask(post(body=body_of()))) == "worker_died_in_stream"
    assert gate.counted("migrations") == [("cut", "finished")]


def tracked_body(path):
    return json.loads(body_of(path)) | {"return_token_ids": True}


GUIDED = {"response_format": {"type": "json_object"}, "tools": [{"type": "function"}], "tool_choice": "required"}


@pytest.mark.parametrize("death", ["reset", "cut"])
async def test_an_answer_of_which_only_the_role_was_sent_begins_again(rig, death):
    """Any chat can, because its client has no token: here with guided output, and without ids."""
    body = body_of(**GUIDED)
    first, second = TokenWorker(ANSWER, 0, death, pause_s=0.1), TokenWorker(ANSWER, name="other")
    gate, reply = await migrated(rig, first, second, raw=post(body=body))
    events = events_of(reply)
    assert text_of(events) == ANSWER and finishes(events) == ["stop"]
    assert {event["id"] for event in events} == {"cmpl-w"}
    assert reply.body.count(b'"role"') == 1
    assert second.bodies == [json.loads(body)]
    assert gate.counted("migrations") == [("cut", "resumed")]
    assert gate.recorded.usage.prompt_tokens == len(PROMPT) and gate.idle


@pytest.mark.parametrize("guided", [True, False], ids=["begins again", "goes on"])
@pytest.mark.parametrize("beside", [(True, True), (True, False), (False, True)], ids=str)
async def test_the_role_may_come_beside_the_first_text(rig, beside, guided):
    """In the answer of either worker. A client that has text of the first one must not get it twice."""
    first = TokenWorker(ANSWER, 0 if guided and not beside[0] else 1, pause_s=0.1, role_beside=beside[0])
    second = TokenWorker(ANSWER, name="other", role_beside=beside[1])
    _, reply = await migrated(rig, first, second, raw=post(body=body_of(**(GUIDED if guided else {}))))
    if guided and beside[0]:
        assert error_of(reply) == "worker_died_in_stream" and begun(reply) == ANSWER[0] and second.bodies == []
    else:
        assert text_of(events_of(reply)) == ANSWER and len(second.bodies) == 1
    assert reply.body.count(b'"role"') == 1


@pytest.mark.parametrize(("more", "dies_at"), [(GUIDED, 1), (GUIDED | {"n": 2}, 0), (GUIDED | {"x": "y" * 70_000}, 0)])
async def test_another_answer_does_not_begin_again(rig, more, dies_at):
    first, second = TokenWorker(ANSWER, dies_at, pause_s=0.1), TokenWorker(ANSWER, name="other")
    gate, reply = await migrated(rig, first, second, raw=post(body=body_of(**more)))
    assert error_of(reply) == "worker_died_in_stream"
    assert second.bodies == [] and gate.counted("migrations") == []


ONCE = [
    ({}, b"x-warmroute-migrate: off\r\n"),
    ({}, b"content-digest: x\r\n"),
    ({"n": 2}, b""),
    ({"kv_transfer_params": {}}, b""),
]


@pytest.mark.parametrize(("more", "header"), ONCE, ids=["opted_out", "signed", "several_answers", "transfer"])
async def test_an_answer_that_may_not_begin_again_does_not_after_a_retry_either(rig, more, header):
    first = TokenWorker(ANSWER, 0, pause_s=0.1)
    gate = await rig(die, first, TokenWorker(ANSWER, name="other"), routes=ROUTES)
    reply = await gate.ask(post(body=body_of(**more), extra=header))
    assert len(gate.workers[0].requests) == len(first.bodies) == 1
    assert error_of(reply) == "worker_died_in_stream"
    assert gate.workers[2].requests == [] and gate.counted("migrations") == []


async def test_ids_reach_a_client_that_asked_for_them_once(rig):
    expected = await whole(rig, body=body_of(return_token_ids=True))
    first, second = TokenWorker(ANSWER, 12, name="w"), TokenWorker(ANSWER, name="other")
    _, reply = await migrated(rig, first, second, raw=post(body=body_of(return_token_ids=True)))
    ids = [one for event in events_of(reply) if event["choices"] for one in event["choices"][0].get("token_ids") or []]
    assert ids == list(ANSWER.encode())
    assert events_of(reply)[:-1] == expected[:-1]


async def test_offsets_of_log_probabilities_go_on(rig):
    body = body_of(TEXT, logprobs=1)
    expected = await whole(rig, TEXT, body)
    for at in (3, 9, 12):
        first, second = TokenWorker(ANSWER, at, name="w"), TokenWorker(ANSWER, name="other")
        _, reply = await migrated(rig, first, second, TEXT, post(TEXT, body))
        assert events_of(reply)[:-1] == expected[:-1]


async def test_a_client_that_asked_for_no_usage_gets_none(rig):
    body = body_of(stream_options=None)
    _, reply = await migrated(rig, TokenWorker(ANSWER, 9), TokenWorker(ANSWER, name="other"), raw=post(body=body))
    assert b"usage" not in reply.body and text_of(events_of(reply)) == ANSWER


INELIGIBLE = [
    ({"response_format": {"type": "json_object"}}, b"", "guided_output"),
    ({"n": 2}, b"", "several_answers"),
    ({"presence_penalty": 1}, b"", "penalties"),
    ({"stop": ["x"]}, b"", "stop"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, b"", "media"),
    ({}, b"x-warmroute-migrate: off\r\n", "opted_out"),
    ({}, b"content-digest: x\r\n", "signed"),
]


def error_of(reply):
    *_, error, done, _ = reply.body.split(b"\n\n")
    assert done == b"data: [DONE]"
    return json.loads(error[6:])["error"]["code"]


def begun(reply):
    """Return the text before the error event."""
    events = [json.loads(line[6:]) for line in reply.body.split(b"\n\n") if line.startswith(b"data: {")]
    return text_of(events[:-1])


@pytest.mark.parametrize(("more", "header", "reason"), INELIGIBLE, ids=[one[2] for one in INELIGIBLE])
async def test_another_stream_ends_as_it_does_without_migration(rig, more, header, reason):
    body = body_of(**more)
    first, second = TokenWorker(ANSWER, 9), TokenWorker(ANSWER, name="other")
    gate, reply = await migrated(rig, first, second, raw=post(body=body, extra=header))
    assert error_of(reply) == "worker_died_in_stream"
    assert first.bodies == [json.loads(body)] and second.bodies == []
    assert gate.counted("migrations") == []
    assert gate.gateway.statistics()["migration"]["requests"] == {reason: 1}
    (record,) = gate.core.log.latest(2)
    assert (record.migration, record.seams) == (reason, ())
    named = dict([line.split(": ") for line in header.decode().splitlines()])
    found = await gate.gateway.preview(CHAT.decode(), named, body)
    assert found.features["migration"]["reason"] == reason


async def test_a_route_without_migration_asks_for_nothing(rig):
    first, second = TokenWorker(ANSWER, 9), TokenWorker(ANSWER, name="other")
    _, reply = await migrated(rig, first, second, routes=[])
    assert error_of(reply) == "worker_died_in_stream"
    assert first.bodies == [json.loads(body_of())] and second.bodies == []


async def test_a_stream_that_gets_too_long_keeps_nothing(rig):
    routes = [{"name": "default", "layers": {"migration": {"limit": 1, "max_tokens": len(PROMPT) + 20}}}]
    first = TokenWorker("word " * 40, 100, "reset", pause_s=1.0)
    gate = await rig(first, TokenWorker(name="other"), routes=routes)
    client = await gate.send(post(body=body_of(tools=[{"type": "function", "function": {"name": "f" * 10_000}}])))
    await eventually(lambda: len(gate.workers[0].requests) == 1)
    await eventually(lambda: gate.gateway.statistics()["migration"]["kept_bytes"] == 0)
    assert not gate.idle  # it counts nothing before its end
    assert error_of(await client.read()) == "worker_died_in_stream"
    assert gate.counted("migrations") == [("cut", "length")]


async def test_a_worker_without_ids_ends_as_before(rig):
    gate, reply = await migrated(rig, TokenWorker(ANSWER, 9, ids=False), TokenWorker(ANSWER, name="other"))
    assert error_of(reply) == "worker_died_in_stream"
    assert gate.counted("migrations") == [("cut", "no_ids")]


async def test_a_second_death_is_one_too_many(rig):
    first, second = TokenWorker(ANSWER, 9), TokenWorker(ANSWER, 4, name="other")
    gate = await rig(first, second, TokenWorker(ANSWER), routes=ROUTES)
    reply = await gate.ask(post(body=body_of()))
    assert error_of(reply) == "worker_died_in_stream"
    assert sorted(gate.counted("migrations")) == [("cut", "limit"), ("cut", "resumed")]


async def test_an_answer_goes_on_as_often_as_the_limit_says(rig):
    routes = [{"name": "default", "layers": {"migration": {"limit": 2}}}]
    gate = await rig(
        TokenWorker(ANSWER, 9), TokenWorker(ANSWER, 8, name="b"), TokenWorker(ANSWER, name="c"), routes=routes
    )
    events = events_of(await gate.ask(post(body=body_of())))
    assert text_of(events) == ANSWER
    assert events[-1]["usage"]["completion_tokens"] == len(ANSWER.encode())
    assert {event["id"] for event in events} == {"cmpl-w"}


async def test_an_answer_may_return_to_a_worker_that_was_restarted(rig):
    routes = [{"name": "default", "layers": {"migration": {"limit": 2}}}]
    lives = iter((TokenWorker(ANSWER, 9), TokenWorker(ANSWER, name="c")))

    async def restarted(script):
        await next(lives)(script)

    gate = await rig(restarted, TokenWorker(ANSWER, 8, name="b"), routes=routes)
    events = events_of(await gate.ask(post(body=body_of())))
    assert text_of(events) == ANSWER
    assert events[-1]["usage"]["completion_tokens"] == len(ANSWER.encode())


async def test_a_worker_that_ignores_the_ids_is_given_up(rig):
    async def ignoring(script):
        script.seen.body = body_of(return_token_ids=True)  # as with image parts: vLLM renders the messages
        await TokenWorker(ANSWER, name="other")(script)

    gate, reply = await migrated(rig, TokenWorker(ANSWER, 9), ignoring)
    assert error_of(reply) == "worker_died_in_stream"
    assert begun(reply) == "Flüsse "
    assert sorted(gate.counted("migrations")) == [("cut", "failed"), ("ids_ignored", "limit")]


async def test_a_first_text_that_is_too_long_never_passes(rig):
    async def leaking(script):
        body = json.loads(script.seen.body)
        ids = body["kv_transfer_params"]["prompt_token_ids"]
        role = {"choices": [{"delta": {"role": "assistant", "content": ""}}], "prompt_token_ids": ids}
        leak = {"choices": [{"delta": {"content": "SECRET" * 20}, "token_ids": [5]}]}
        await script.say(STREAM, *(chunk(b"data: %b\n\n" % json.dumps(one).encode()) for one in (role, leak)))
        await script.gone()

    gate, reply = await migrated(rig, TokenWorker(ANSWER, 9), leaking)
    assert error_of(reply) == "worker_died_in_stream" and b"SECRET" not in reply.body
    assert ("too_much_text", "limit") in gate.counted("migrations")


async def test_an_event_that_cannot_be_read_is_a_failure_of_its_leg(rig):
    """It would pass with its ids, and the next worker would write its text again."""

    async def garbling(script):
        *events, _ = Answering(TokenWorker(ANSWER), json.loads(script.seen.body), True).events()
        odd = events[5].replace(b'"finish_reason"', b"finish_reason")
        await script.say(STREAM, *map(chunk, events[:5]))
        await script.say_apart(chunk(odd), chunk(events[6]))
        await script.gone()

    routes = [{"name": "default", "layers": {"migration": {"limit": 2}}}]
    gate = await rig(TokenWorker(ANSWER, 9), garbling, TokenWorker(ANSWER, name="c"), routes=routes)
    reply = await gate.ask(post(body=body_of()))
    assert text_of(events_of(reply)) == ANSWER and b'_ids":[' not in reply.body
    assert sorted(gate.counted("migrations")) == [("cut", "resumed"), ("unreadable", "resumed")]
    reply = await (await rig(TokenWorker(ANSWER, 9), garbling, routes=ROUTES)).ask(post(body=body_of()))
    assert error_of(reply) == "worker_died_in_stream" and b'_ids":[' not in reply.body


async def test_a_worker_that_refuses_the_ids_leaves_the_error_event(rig):
    gate, reply = await migrated(rig, TokenWorker(ANSWER, 9), says(json_head(2, b"400 Bad Request"), b"{}"))
    assert begun(reply) == "Flüsse "
    assert error_of(reply) == "worker_failed"
    assert gate.counted("migrations") == [("cut", "failed")]
    assert gate.idle


async def test_a_worker_that_answers_without_a_stream_adds_nothing(rig):
    body = json.dumps({"choices": [{"message": {"role": "assistant", "content": ANSWER}}]}).encode()
    gate, reply = await migrated(rig, TokenWorker(ANSWER, 9), says(json_head(len(body)), body))
    assert begun(reply) == "Flüsse " and b" end " not in reply.body
    assert error_of(reply) == "worker_failed"
    assert gate.counted("migrations") == [("cut", "failed")]
    assert gate.idle


async def test_without_another_worker_the_stream_ends_with_an_error(rig):
    gate = await rig(TokenWorker(ANSWER, 9), routes=ROUTES)
    reply = await gate.ask(post(body=body_of()))
    assert begun(reply) == "Flüsse " and b'"error"' in reply.body
    assert gate.counted("migrations") == [("cut", "pool_lost")]


async def test_a_question_that_the_worker_refuses_is_taken_back(rig):
    async def old(script):
        if b"return_token_ids" in script.seen.body:
            await script.say(json_head(2, b"400 Bad Request"), b"{}")
        else:
            await TokenWorker(ANSWER, ids=False)(script)

    gate = await rig(old, routes=ROUTES)
    assert text_of(events_of(await gate.ask(post(body=body_of())))) == ANSWER
    assert gate.gateway.statistics()["migration"]["requests"] == {"tracked": 1, "refused_ids": 1}
    assert gate.core.log.latest(1)[0].migration == "refused_ids"


async def test_a_client_that_leaves_during_the_gap_ends_the_request(rig):
    gate = await rig(TokenWorker(ANSWER, 9), silent, routes=ROUTES)
    client = await gate.send(post(body=body_of()))
    await eventually(lambda: len(gate.workers[1].requests) == 1)
    client.writer.transport.abort()
    await eventually(lambda: gate.idle)
    assert gate.counted("migrations") == [("cut", "left")]
    assert gate.counted("client_aborts") == [("stream",)]


async def test_comments_bridge_the_gap(rig):
    go_on = asyncio.Event()
    gate = await rig(
        TokenWorker(ANSWER, 9),
        after(go_on, TokenWorker(ANSWER, name="other")),
        routes=ROUTES,
        timeouts={"comment_interval_s": 0.1, "header_delay_s": 0.1, "upstream_idle_s": 4.0},
    )
    client = await gate.send(post(body=body_of()))
    await client.reader.readuntil(b": warmroute")
    go_on.set()
    assert (await client.reader.readuntil(b"[DONE]")).count(b"data: ") >= 10


async def test_the_second_worker_gets_the_rest_of_the_budget(rig):
    first, second = TokenWorker("Hello world", 5), TokenWorker("Hello world")
    _, reply = await migrated(rig, first, second, raw=post(body=body_of(max_tokens=8, min_tokens=6)))
    events = events_of(reply)
    assert text_of(events) == "Hello wo" and finishes(events) == ["length"]
    (asked,) = second.bodies
    assert asked["max_tokens"] == 3 and asked["min_tokens"] == 1
    assert asked["kv_transfer_params"] == {"prompt_token_ids": PROMPT + list(b"Hello")}
    assert asked["messages"] == [] and asked["stream_options"] == {"include_usage": True}


async def test_only_so_many_answers_compute_their_prompt_at_once(rig):
    """Five answers lose their worker; one at a time waits for its first token, the oldest first."""
    go_on = asyncio.Event()
    first = TokenWorker(ANSWER, 9, pause_s=0.05, name="w")
    second = after(go_on, TokenWorker(ANSWER, name="other"))
    routes = [{"name": "default", "layers": {"migration": {"limit": 1, "prefills_per_worker": 1}}}]
    gate = await rig(first, routes=routes)
    clients = [await gate.send(post(body=body_of())) for _ in range(5)]
    await eventually(lambda: len(gate.workers[0].requests) == 5)
    await gate.add(second)
    await eventually(lambda: gate.gateway.statistics()["migration"]["waiting"] >= 3)
    assert len(gate.workers[1].requests) <= 2
    go_on.set()
    for client in clients:
        assert text_of(events_of(await client.read())) == ANSWER
    assert gate.idle
    assert gate.gateway.statistics()["migration"]["waiting"] == 0


def used_of(gate):
    (account,) = gate.gateway.limits()
    return account["used_tokens"], account["admitted"]


async def test_a_caller_pays_once_for_both_legs(rig):
    """The gateway asks for usage itself, takes it out of the second leg, too, and charges that of the whole answer."""
    workers = [TokenWorker(ANSWER, name=name) for name in "wv"]
    limits = {"tokens_per_minute": 6_000_000, "requests_per_minute": 1_000}
    gate = await rig(*workers, routes=ROUTES, limits={"tenants": {"default": limits}})
    body = body_of(stream_options=None)
    for _ in workers:  # the first stream of a worker is not asked
        await gate.ask(post(body=body))
    before = used_of(gate)
    for worker in workers:
        worker.dies_at, worker.first_legs_only = 9, True
    reply = await gate.ask(post(body=body))
    assert text_of(events_of(reply)) == ANSWER and b"usage" not in reply.body
    assert [one.get("stream_options") for one in workers[0].bodies + workers[1].bodies].count(None) == 2
    assert gate.recorded.events[-1] == "finished 200"
    spent = [now - then for now, then in zip(used_of(gate), before, strict=True)]
    assert spent == [len(PROMPT) + len(ANSWER.encode()), 1]


async def test_a_client_that_leaves_during_the_gap_pays_for_its_text(rig):
    limits = {"tokens_per_minute": 6_000_000, "requests_per_minute": 1_000}
    gate = await rig(TokenWorker("word " * 80, 300), silent, routes=ROUTES, limits={"tenants": {"default": limits}})
    client = await gate.send(post(body=body_of(max_tokens=400)))
    await eventually(lambda: len(gate.workers[1].requests) == 1)
    client.writer.transport.abort()
    await eventually(lambda: gate.idle)
    assert used_of(gate)[0] == len(PROMPT) + 300


async def test_silence_of_a_worker_that_is_gone_is_a_death(rig, monkeypatch):
    monkeypatch.setattr(gone_workers, "QUIET_S", 0.2)
    monkeypatch.setattr(gone_workers, "_LOOK_S", 0.02)
    monkeypatch.setattr(fleet, "EVIDENCE_S", 0.0)
    gate = await rig(TokenWorker(ANSWER, 9, "silence"), TokenWorker(ANSWER, name="other"), routes=ROUTES)
    client = await gate.send(post(body=body_of()))
    await eventually(lambda: len(gate.workers[0].requests) == 1)
    gate.workers[0].server.close()
    gate.fleet.refused(gate.workers[0].id, gate.loop.time())
    assert text_of(events_of(await client.read())) == ANSWER
    assert gate.counted("migrations") == [("silence", "resumed")]
    await eventually(lambda: gate.workers[0].requests[0].gone.is_set())


@pytest.mark.parametrize("way", ["tracked", "begins again"])
async def test_what_is_kept_of_a_body_counts_until_the_answer_ends(rig, way):
    wakes, go_on = asyncio.Event(), asyncio.Event()
    tools = [{"type": "function", "function": {"name": "f" * 20_000}}]
    more = {"tools": tools} | ({} if way == "tracked" else {"presence_penalty": 1})
    body = body_of(messages=[{"role": "user", "content": "x" * 10_000}], **more)
    events = list(Answering(TokenWorker("word " * 40), tracked_body(CHAT), True).events())

    async def answering(script):
        await script.say(STREAM, chunk(events[0]))
        await wakes.wait()
        await script.say_apart(*map(chunk, events[1:80]))
        await go_on.wait()
        await script.say_apart(*map(chunk, events[80:]), END)

    gate = await rig(answering, routes=ROUTES)
    statistics = gate.gateway.statistics
    client = await gate.send(post(body=body))
    await eventually(lambda: gate.gateway.statistics()["migration"]["kept_bytes"] > 0)
    await eventually(lambda: statistics()["buffered_body_bytes"] == statistics()["migration"]["kept_bytes"])
    kept_bytes = statistics()["buffered_body_bytes"]
    assert kept_bytes == len(body) if way != "tracked" else 20_000 < kept_bytes < 20_000 + 1_000
    wakes.set()
    await client.reader.readuntil(b'"content":"d"')
    expected = 0 if way != "tracked" else kept_bytes
    await eventually(lambda: statistics()["buffered_body_bytes"] == expected)
    assert (statistics()["migration"]["kept_bytes"] > 0) == (way == "tracked")
    go_on.set()
    await client.reader.readuntil(b"[DONE]")
    await eventually(lambda: statistics()["buffered_body_bytes"] == statistics()["migration"]["kept_bytes"] == 0)


def leaving(after_s, **more):
    return [{"name": "default", "layers": {"migration": {"limit": 1, "drain_after_s": after_s} | more}}]


async def begun_at_first(gate, body=None):
    client = await gate.send(post(body=body or body_of()))
    await eventually(lambda: len(gate.workers[0].requests) == 1)
    return client


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(drains, "LOOK_S", 0.02)


async def test_an_answer_leaves_a_worker_that_drains(rig, often):
    gate = await rig(TokenWorker(ANSWER, 9, "silence"), TokenWorker(ANSWER, name="other"), routes=leaving(0.1))
    client = await begun_at_first(gate)
    gate.fleet.drain(gate.workers[0].id)
    assert text_of(events_of(await client.read())) == ANSWER
    assert gate.counted("migrations") == [("drain", "resumed")]
    assert "failed stream" not in gate.recorded.events and "cancelled" in gate.recorded.events
    await eventually(lambda: gate.workers[0].requests[0].gone.is_set())
    assert gate.idle


def discovery_drops(gate, name):
    worker = WorkerConfig(f"http://{name}")
    settings = replace(live_settings(gate.config), workers={name: worker})
    found = {name: FoundWorker(worker=worker, source="dns", leaving=True)}
    state = DesiredState(version=1, lineage="a", settings=settings, discovered=found)
    describe(gate.fleet, name, state.effective.workers[name])


WAYS = {
    "an operator with a time": (ROUTES, lambda gate, name: gate.fleet.drain(name, 0.1)),
    "discovery names it no more": (leaving(0.1), discovery_drops),
    "it says that it shuts down": (
        leaving(0.1),
        lambda gate, name: setattr(gate.fleet.get(name), "stopping_since_s", gate.loop.time()),
    ),
}


@pytest.mark.parametrize("way", WAYS)
async def test_each_way_to_drain_moves_answers(rig, often, way):
    routes, drain = WAYS[way]
    gate = await rig(TokenWorker(ANSWER, 9, "silence"), TokenWorker(ANSWER, name="other"), routes=routes)
    client = await begun_at_first(gate)
    drain(gate, gate.workers[0].id)
    assert text_of(events_of(await client.read())) == ANSWER
    assert gate.counted("migrations") == [("drain", "resumed")]


async def test_the_worker_after_the_drain_may_die_too(rig, often):
    scripts = TokenWorker(ANSWER, 9, "silence"), TokenWorker(ANSWER, 9, name="b"), TokenWorker(ANSWER, name="c")
    gate = await rig(*scripts, routes=leaving(0))
    client = await begun_at_first(gate)
    gate.fleet.drain(gate.workers[0].id)
    assert text_of(events_of(await client.read())) == ANSWER
    assert sorted(gate.counted("migrations")) == [("cut", "resumed"), ("drain", "resumed")]


@pytest.mark.parametrize("case", ["too soon", "off", "no other worker", "ineligible"])
async def test_an_answer_stays_that_need_not_or_cannot_leave(rig, often, case):
    go_on = asyncio.Event()

    workers = [TokenWorker(ANSWER, 9, "silence", wakes=go_on), TokenWorker(ANSWER, name="other")]
    if case == "no other worker":
        del workers[1]
    gate = await rig(*workers, routes={"too soon": leaving(60), "off": ROUTES}.get(case, leaving(0)))
    client = await begun_at_first(gate, body_of(stop=["x"]) if case == "ineligible" else None)
    gate.fleet.drain(gate.workers[0].id)
    await asyncio.sleep(0.2)
    assert gate.recorded.events[:2] == ["ticket", "first_token"] and "cancelled" not in gate.recorded.events
    go_on.set()
    assert text_of(events_of(await client.read())) == ANSWER
    assert gate.counted("migrations") == []


NO_PLACE = {
    "at its limit": {"limits": {"max_requests_per_worker": 1}},
    "of the class's turn": {"classes": {"chat": {"share": 1}}},
}


@pytest.mark.parametrize("settings", NO_PLACE.values(), ids=NO_PLACE)
@pytest.mark.parametrize("then", ["stays", "dies", "moves"])
async def test_an_answer_stays_at_its_worker_until_it_has_a_place_elsewhere(rig, often, settings, then):
    """The other worker is ready, and has no room for it."""
    wakes, busy = asyncio.Event(), asyncio.Event()
    first = TokenWorker(ANSWER, 9, "silence", per_event=(2, 1), wakes=wakes)
    second = in_turn(after(busy, TokenWorker(ANSWER)), then=TokenWorker(ANSWER, name="other"))
    gate = await rig(first, second, routes=leaving(0), **settings)
    client = await begun_at_first(gate)
    if not COMPILED:
        gate.identity.prompt = lambda: Prompt(8_000, PromptSource.IDS, lambda block: range(8_000 // block))
    other = await gate.send(post(body=body_of()))
    await eventually(lambda: len(gate.workers[1].requests) == 1)
    gate.fleet.drain(gate.workers[0].id)
    await asyncio.sleep(0.2)
    assert "cancelled" not in gate.recorded.events and not gate.workers[0].requests[0].gone.is_set()
    assert gate.counted("migrations") == []
    if then == "stays":
        wakes.set()
    elif then == "moves":
        busy.set()
    else:
        gate.fleet.undrain(gate.workers[0].id)
        busy.set()
        await other.read()
        await gate.workers[0].stop()
    assert text_of(events_of(await client.read())) == ANSWER
    expected = {"stays": [], "dies": [("cut", "resumed")], "moves": [("drain", "resumed")]}
    assert gate.counted("migrations") == expected[then]
    busy.set()
    await eventually(lambda: gate.idle)
    assert gate.gateway.statistics()["migration"]["waiting"] == 0


async def test_an_answer_goes_on_by_the_order_of_classes(rig):
    first, second = TokenWorker(ANSWER, 9), TokenWorker(ANSWER, name="other")
    gate, reply = await migrated(rig, first, second, classes={"chat": {"share": 1}, "batch": {"share": 1}})
    assert text_of(events_of(reply)) == ANSWER
    assert gate.counted("migrations") == [("cut", "resumed")] and gate.idle


def began(gate):
    """Return the requests whose answer is relayed."""
    return [one for one in gate.gateway._parts.requests.running if one._outbound.begun]


@pytest.mark.skipif(COMPILED, reason="prompts that differ need the stand-in for the identity")
async def test_a_preempted_answer_goes_on_at_another_worker(rig):
    """The KV caches of two workers hold one prompt each. A chat takes the place of a batch job that is answered."""
    first, second = (TokenWorker(ANSWER, 9, name=name, wakes=asyncio.Event()) for name in ("w", "other"))
    classes = {"chat": {"share": 1.0}, "batch": {"share": 0.0, "preemptible": True}}
    gate = await rig(classes=classes, routes=ROUTES, auth={"allow": ["priority"]})
    gate.identity.prompt = unlike_prompts(96)
    small = dataclasses.replace(FACTS, caches={0: RankCache(16, 8, True)})
    replies = []
    for worker, name in ((first, b"batch"), (second, b"chat"), (None, b"chat")):
        if worker is not None:
            await gate.add(worker, small)
        client = await gate.send(post(CHAT, body_of(), extra=named(name)))
        replies.append(asyncio.ensure_future(client.read()))
        if worker is not None:
            await eventually(lambda: len(began(gate)) == len(replies))
    await eventually(lambda: len(first.bodies) == 2)
    assert len(second.bodies) == 1, "the batch job waits for room there"
    for worker in (first, second):
        worker.wakes.set()
    for reply in replies:
        assert text_of(events_of(await reply)) == ANSWER
    assert gate.counted("migrations") == [("preempted", "resumed")]
    assert len(second.bodies) == 2
    assert gate.idle
