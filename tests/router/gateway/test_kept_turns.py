import json
from array import array
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from backends.worker import ConnectorFacts
from router.gateway.flow import kept_turns
from router.gateway.flow.kept_turns import KeptTurns
from router.placement.kept_turns import GivenPrompt
from router.placement.lifecycle_events import Usage
from router.tokenization.memo import packed_ids
from tests.router.gateway.test_handover import COMPLETIONS, SETTINGS, Shared, computed, decode_id, moved, prefill_id
from tests.support.gateway_rig import FACTS
from tests.support.waiting import eventually

FIRST = list(range(300, 420))
MORE = list(range(500, 540))
ANSWER_TOKENS = 100
"""Enough that a prefill worker reads them: vLLM reads no less than 64."""
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


class Conversations(Shared):
    """A prefill and a decode worker, and conversations in token ids."""

    async def begin(self, *, prefill=None, decode=None):
        self.prefill, _ = await self.add("prefill", kv_turn_lease_s=60.0, **(prefill or {}))
        self.decode, _ = await self.add("decode", **({"kv_turn_lease_s": 60.0} | (decode or {})))
        return self

    async def turn(self, prompt, **fields):
        """Ask for one answer. Return its token ids."""
        self.rig.identity.tokens = len(prompt)
        asked = {"prompt": prompt, "max_tokens": ANSWER_TOKENS, "return_token_ids": True, "ignore_eos": True} | fields
        reply = await self.hand_over(COMPLETIONS, **asked)
        assert reply.status == 200
        assert b'"kv_transfer_params":{' not in reply.body
        return answer_ids(reply)

    async def two_turns(self, between=None, **fields):
        """Ask, and ask again with a prompt that extends the first turn. Return that prompt."""
        answer = await self.turn(FIRST, **fields)
        if between is not None:
            await between()
        prompt = FIRST + answer + MORE
        assert len(await self.turn(prompt, **fields)) == ANSWER_TOKENS
        return prompt

    @property
    def seen(self):
        return [outcome for (outcome,) in self.rig.metrics.named("turn_kept")]

    @property
    def said(self):
        """Return what the decision log says of the turns before, oldest first."""
        legs = [record.leg for record in self.rig.dispatcher.decisions(20)]
        return [leg.turn for leg in reversed(legs) if leg is not None and leg.part == "prefill"]

    @property
    def turns(self):
        return self.rig.gateway._parts.handovers.turns

    @property
    def running(self):
        (request,) = self.rig.gateway._parts.running
        return request

    def candidate(self, of):
        return next(one for one in self.rig.fleet.candidates if one.id == of)


def answer_ids(reply):
    if not reply.header(b"content-type").startswith(b"text/event-stream"):
        return json.loads(reply.body)["choices"][0]["token_ids"]
    frames = [json.loads(line[6:]) for line in reply.body.split(b"\n\n") if line.startswith(b"data: {")]
    return [token for frame in frames for choice in frame["choices"] for token in choice["token_ids"]]


@pytest.fixture
async def talk(rig):
    """`await talk(...)` starts a gateway with a prefill and a decode worker."""
    async with AsyncExitStack() as stack:

        async def start(prefill=None, decode=None, **handover):
            settings = SETTINGS | {"turn_lease_s": 60.0} | handover
            made = Conversations(await rig(handover=settings, auth={"allow": ["transfer_params"]}), stack)
            return await made.begin(prefill=prefill, decode=decode)

        yield start


@pytest.mark.parametrize("fields", [{}, STREAMED])
async def test_the_next_turns_prefill_reads_what_the_decode_worker_keeps(talk, fields, monkeypatch):
    gateway = await talk()
    monkeypatch.setattr(gateway.rig.dispatcher, "transferred", lambda *_: None)  # these workers compute in no time
    prompt = await gateway.two_turns(**fields)
    assert gateway.outcomes == ["handed_over"] * 2
    assert gateway.seen == ["none", "kept", "read", "kept"]
    assert gateway.said == ["none", decode_id(gateway)]
    kept = (len(FIRST) + ANSWER_TOKENS - 1) // 16 * 16
    assert computed(gateway.prefill) == len(FIRST) + len(prompt) - kept
    assert (moved(gateway.prefill)["read_turns"], moved(gateway.decode)["leased"]) == (1, 1)  # of the second turn
    assert gateway.rig.idle


async def test_the_turn_that_a_request_would_read_is_known_before_it_is_sent(talk):
    """To ask changes nothing. A prompt that departs from the turn would read none."""
    gateway = await talk()
    prompt = FIRST + await gateway.turn(FIRST) + MORE
    before = list(gateway.seen)

    async def explained(asked):
        body = json.dumps({"model": "m", "prompt": asked}).encode()
        previewed = await gateway.rig.gateway.preview(COMPLETIONS.decode(), {}, body)
        turns = gateway.rig.gateway.turns_before(previewed.request, previewed.body)
        return gateway.rig.dispatcher.explain_handover(previewed.request, gateway.rig.loop.time(), turns)

    gateway.rig.identity.tokens = len(prompt)
    (turn,) = (await explained(prompt)).turns
    assert (turn.worker, turn.tokens) == (decode_id(gateway), len(FIRST) + ANSWER_TOKENS - 1)
    assert 50.0 < turn.left_s <= 60.0
    assert (await explained(FIRST + [7] * ANSWER_TOKENS + MORE)).turns == ()
    assert (await explained("a text")).turns == ()
    assert gateway.seen == before and gateway.turns.statistics()["turns"] == 1
    await gateway.turn(prompt)
    assert gateway.said[-1] == decode_id(gateway)


async def test_what_was_read_teaches_nothing_about_the_prefill_workers_own_cache(talk):
    gateway = await talk()
    await gateway.two_turns()
    (record,) = [
        one
        for one in gateway.rig.dispatcher.decisions(20)
        if one.leg is not None and one.leg.turn == decode_id(gateway)
    ]
    assert (record.predicted_cached_tokens, record.reported_cached_tokens, record.outcome) == (None, None, "finished")


async def test_a_turn_is_read_once(talk):
    gateway = await talk()
    prompt = await gateway.two_turns()
    await gateway.turn(prompt)
    assert gateway.said == ["none", decode_id(gateway), "none"]
    assert moved(gateway.prefill)["read_turns"] == 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"prompt": FIRST + [7] * ANSWER_TOKENS + MORE}, "departed"),
        ({"prompt": FIRST}, "none"),
        ({"prompt": "a text"}, "none"),
        ({"truncate_prompt_tokens": 200}, "none"),
        ({"cache_salt": "another"}, "none"),
    ],
)
async def test_a_prompt_that_is_not_known_to_extend_the_turn_is_computed(talk, changed, said):
    gateway = await talk()
    answer = await gateway.turn(FIRST)
    await gateway.turn(**({"prompt": FIRST + answer + MORE} | changed))
    assert (gateway.said[-1], moved(gateway.prefill)["read_turns"]) == (said, 0)
    assert gateway.outcomes == ["handed_over"] * 2


async def test_of_several_turns_the_longest_is_read(talk):
    gateway = await talk()

    async def add():
        (turn,) = gateway.turns._turns
        shorter = replace(turn, prompt=turn.prompt._replace(ids=turn.prompt.ids[:256]))
        gateway.turns._turns.append(shorter)

    await gateway.two_turns(between=add)
    assert gateway.seen == ["none", "kept", "read", "kept"]
    assert len(gateway.turns._turns[0].prompt.ids) == 256


@pytest.mark.parametrize("longer", [{"lost": True}, {"end_s": 0.0}])
async def test_a_turn_that_cannot_be_read_does_not_hide_a_shorter_one(talk, longer):
    gateway = await talk()

    async def add():
        (turn,) = gateway.turns._turns
        gateway.turns._turns.append(replace(turn, **longer))
        turn.prompt = turn.prompt._replace(ids=turn.prompt.ids[:-64])

    await gateway.two_turns(between=add)
    assert gateway.said[1] == decode_id(gateway)


async def test_of_equal_turns_the_one_with_the_latest_lease_is_read(talk):
    gateway = await talk()
    await gateway.turn(FIRST)
    (turn,) = gateway.turns._turns
    later = replace(turn, end_s=turn.end_s + 1.0)
    gateway.turns._turns.append(later)
    assert gateway.turns.extended_by(turn.prompt._replace(ids=turn.prompt.ids * 2)) == [later, turn]


async def test_a_turn_must_last_as_long_as_the_prefill_is_expected_to_take(talk, monkeypatch):
    gateway = await talk()
    build = gateway.rig.dispatcher._view_builder.build

    def slower(*args):
        request, fleet, found = build(*args)
        fleet.prefill_s[:] += 1_000.0
        return request, fleet, found

    monkeypatch.setattr(gateway.rig.dispatcher._view_builder, "build", slower)
    await gateway.two_turns()
    assert gateway.said == ["none", "expired"]
    assert gateway.outcomes == ["handed_over"] * 2


async def test_a_prefill_that_is_sent_again_asks_for_no_turn(talk, monkeypatch):
    """The worker may have read the turn before its idle connection broke."""
    gateway, asked, params_for = await talk(), [], KeptTurns.params_for

    def breaking(*args):
        asked.append(args)
        gateway.rig.loop.call_soon(lambda: gateway.running._flow.attempts[0].connection._transport.abort())
        return params_for(*args)

    monkeypatch.setattr(KeptTurns, "params_for", breaking)
    await gateway.two_turns()
    assert (len(asked), gateway.rig.metrics.named("redialled")) == (1, [()])
    assert gateway.seen == ["none", "kept", "read_failed", "kept"]
    assert gateway.outcomes == ["handed_over"] * 2


async def test_the_lease_is_older_by_the_time_in_which_the_client_did_not_read(talk, monkeypatch):
    gateway, kept, paused = await talk(), [], []
    loop, keep = gateway.rig.loop, KeptTurns.keep

    def pause(outcome):
        paused.append(loop.time())
        gateway.running.client_writable(False)
        loop.call_later(0.1, resume)

    def resume():
        paused.append(loop.time())
        gateway.running.client_writable(True)

    def keeping(*args):
        kept.append(loop.time() - args[-1])
        keep(*args)

    monkeypatch.setattr(gateway.rig.metrics, "handed_over", pause, raising=False)
    monkeypatch.setattr(KeptTurns, "keep", keeping)
    await gateway.turn(FIRST, **STREAMED)
    assert kept[0] >= paused[1] - paused[0] - 0.01


async def test_an_answer_without_token_ids_is_not_kept(talk):
    gateway = await talk()
    body = {"prompt": FIRST, "max_tokens": ANSWER_TOKENS}
    assert (await gateway.hand_over(COMPLETIONS, **body)).status == 200
    assert gateway.seen == ["none", "not_kept"]


async def test_a_chat_shows_the_client_no_parameters_and_is_not_kept(talk):
    gateway = await talk()
    for fields in ({}, STREAMED):
        chat = {"messages": [{"role": "user", "content": "Hello, world"}], "max_tokens": 3}
        reply = await gateway.hand_over(b"/v1/chat/completions", **chat, **fields)
        assert (reply.status, b"remote_engine_id" in reply.body) == (200, False)
    assert gateway.seen == ["none", "none"]


async def test_a_prefill_that_cannot_read_the_turn_costs_only_time(talk):
    """The decode worker has dropped it earlier than the settings say."""
    gateway = await talk(decode={"kv_turn_lease_s": 0.05})

    async def expired():
        await eventually(lambda: moved(gateway.decode)["expired"] == 1)

    await gateway.two_turns(between=expired)
    assert gateway.outcomes == ["handed_over", "prefill_failed"]
    assert gateway.seen == ["none", "kept", "read_failed"]
    assert (moved(gateway.prefill)["failed"], moved(gateway.prefill)["read_turns"]) == (1, 0)


async def test_a_turn_close_to_the_end_of_its_lease_is_not_read(talk):
    gateway = await talk(turn_lease_s=5.1)  # the margin is 5 s

    async def over():
        (turn,) = gateway.turns._turns
        await eventually(lambda: gateway.rig.loop.time() >= turn.end_s)

    await gateway.two_turns(between=over)
    assert gateway.said == ["none", "expired"]
    assert gateway.outcomes == ["handed_over"] * 2
    assert moved(gateway.prefill)["read_turns"] == 0


async def test_the_lease_is_checked_again_when_the_prefill_is_sent(talk, monkeypatch):
    gateway, limits = await talk(), []
    take = KeptTurns.take

    def late(turns, planned, *args):
        planned.turn.end_s = 0.0
        gateway.rig.loop.call_soon(lambda: limits.append(gateway.running._flow.attempts[0].limit_s))
        return take(turns, planned, *args)

    answer = await gateway.turn(FIRST)
    monkeypatch.setattr(KeptTurns, "take", late)
    await gateway.turn(FIRST + answer + MORE)
    assert (gateway.seen[2], moved(gateway.prefill)["read_turns"]) == ("expired", 0)
    assert gateway.outcomes == ["handed_over"] * 2
    assert limits == [gateway.rig.gateway._parts.handovers.config.prefill_s]  # it computes all, so no lease limits it


@pytest.mark.parametrize("how", ["restarted", "ejected"])
async def test_a_turn_of_a_lost_worker_is_not_read(talk, how):
    gateway = await talk()

    async def lose():
        fleet, owner = gateway.rig.fleet, gateway.candidate(decode_id(gateway)).endpoint
        for callback in fleet.on_process if how == "restarted" else fleet.on_loss:
            callback(owner, True, 0.0) if how == "restarted" else callback(owner)

    await gateway.two_turns(between=lose)
    assert gateway.said == ["none", "worker_lost"]
    assert moved(gateway.prefill)["read_turns"] == 0


async def test_a_worker_of_another_format_reads_no_turn(talk):
    gateway = await talk()

    async def change():
        gateway.candidate(prefill_id(gateway)).endpoint.learn(
            replace(FACTS, connector=ConnectorFacts(name="NixlConnector"))
        )

    await gateway.two_turns(between=change)
    assert gateway.said == ["none", "unlike"]


@pytest.mark.parametrize("problem", ["usage", "no usage", "blocks", "params"])
async def test_a_turn_that_is_not_known_whole_is_not_kept(talk, monkeypatch, problem):
    gateway, kept = await talk(), []
    with monkeypatch.context() as patched:
        patched.setattr(KeptTurns, "keep", lambda *args: kept.append(args))
        await gateway.turn(FIRST)
    ((turns, prompt, answer, usage, owner, since_s),) = kept
    if problem == "usage":
        usage = Usage(usage.prompt_tokens, usage.completion_tokens + 1, None)
    elif problem == "no usage":
        usage = Usage()
    elif problem == "blocks":
        owner.block_tokens = 8
    else:
        answer.params = answer.params.replace(b'"remote_port"', b'"port"')
    turns.keep(prompt, answer, usage, owner, since_s)
    assert gateway.seen == ["none", "not_kept"]


async def test_a_turn_that_is_dearer_to_read_than_to_compute_stays(talk):
    gateway = await talk(latency_s=10.0)
    await gateway.two_turns()
    assert gateway.said == ["none", "dearer"]
    assert (gateway.turns.count, moved(gateway.prefill)["read_turns"]) == (2, 0)


async def test_old_turns_make_room(talk, monkeypatch):
    monkeypatch.setattr(kept_turns, "_MAX_TURNS", 2)
    gateway = await talk()
    prompts = [[number, *FIRST] for number in range(3)]
    prompts = [prompt + await gateway.turn(prompt) + MORE for prompt in prompts]
    given = [GivenPrompt("m", b"null", packed_ids(array("I", prompt))) for prompt in prompts]
    assert [len(gateway.turns.extended_by(prompt)) for prompt in given] == [0, 1, 1]
    monkeypatch.setattr(kept_turns, "_MAX_BYTES", 0)
    await gateway.turn(FIRST)
    assert gateway.turns.statistics() == {"turns": 0, "bytes": 0}
    assert gateway.seen.count("pushed_out") == 4


async def test_turns_whose_time_has_ended_are_dropped(talk):
    gateway = await talk()
    await gateway.turn(FIRST)
    (turn,) = gateway.turns._turns
    size = len(turn.prompt.ids) + len(turn.params)
    assert gateway.rig.gateway.statistics()["kept_turns"] == {"turns": 1, "bytes": size}
    tokens = len(FIRST) + ANSWER_TOKENS - 1
    assert gateway.rig.gateway.kept_turns() == {decode_id(gateway): {"kept_turns": 1, "kept_turn_tokens": tokens}}
    lease_s, now_s = turn.end_s - gateway.rig.loop.time(), gateway.rig.loop.time()
    for gone in ({"lost": True}, {"end_s": now_s}):
        gateway.turns._turns[0] = replace(turn, **gone)
        assert gateway.rig.gateway.statistics()["kept_turns"] == {"turns": 0, "bytes": size}
        assert gateway.rig.gateway.kept_turns() == {}
    gateway.turns._turns[0].end_s = now_s - lease_s - 1.0
    assert gateway.rig.gateway.statistics()["kept_turns"] == {"turns": 0, "bytes": 0}
    assert gateway.rig.gateway.kept_turns() == {}
    assert gateway.seen == ["none", "kept", "unread"]
