"""Two workers at once for a request whose first event does not come."""

import asyncio

import pytest

CHAT = "/v1/chat/completions"
ON = {"paths": [CHAT], "after_s": 0.05, "max_ratio": 1.0}
RELEASE_S = 0.1
UNSERVED = b'{"error":{"message":"The model `m` does not exist.","type":"NotFoundError","param":"model","code":404}}'


class Turns:
    """The first request of the fleet meets `scripts[0]`, the second `scripts[1]`, whichever worker gets it."""

    def __init__(self, *scripts):
        self.scripts = list(scripts)
        self.seen = []

    async def __call__(self, script):
        self.seen.append(script.seen)
        await self.scripts[len(self.seen) - 1](script)


async def silent(script):
    await script.gone()


def after(delay_s, act):
    async def later(script):
        watch = asyncio.create_task(script.gone())
        done, _ = await asyncio.wait([watch], timeout=delay_s)
        if done:
            return
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await act(script)

    return later


async def race(rig, first, second, *more, workers=2, **settings):
    turns = Turns(first, second, *more)
    gate = await rig(*[turns] * workers, **{"hedging": ON, **settings})
    gate.turns = turns
    return gate


def outcomes(gate):
    return [name for (name,) in gate.metrics.named("hedged")]


def idle_connections(gate):
    by_worker = gate.gateway.statistics()["pools"]["idle_by_worker"]
    return [worker for worker, count in by_worker.items() for _ in range(count)]


def log_of(gate):
    return [record.to_builtins() for record in reversed(gate.dispatcher.decisions(9))]


async def test_the_second_worker_answers_and_the_first_is_freed_at_once(rig, kit):
    gate = await race(rig, silent, kit.answer_stream)
    reply = await gate.ask(kit.post())
    assert reply.status == 200
    assert reply.body.count(b"data: ") == 5
    await asyncio.wait_for(gate.turns.seen[0].gone.wait(), RELEASE_S)
    assert gate.turns.seen[0].body == gate.turns.seen[1].body
    assert gate.dispatcher.edges[:4] == ["ticket", "hedge", "lost", "first_token"]
    assert gate.dispatcher.edges[-1] == "finished 200"
    assert outcomes(gate) == ["won"]
    assert gate.idle
    first, second = log_of(gate)
    assert (first["hedge"], first["outcome"]) == (False, "cancelled: another worker answered first")
    assert (second["hedge"], second["outcome"]) == (True, "finished")
    assert first["request_id"] == second["request_id"]
    assert first["worker"] != second["worker"]


async def test_the_first_worker_answers_after_all_and_the_second_is_freed_at_once(rig, kit):
    gate = await race(rig, after(0.15, kit.answer_stream), silent)
    assert (await gate.ask(kit.post())).body.count(b"data: ") == 5
    await asyncio.wait_for(gate.turns.seen[1].gone.wait(), RELEASE_S)
    assert gate.dispatcher.edges[:4] == ["ticket", "hedge", "lost", "first_token"]
    assert outcomes(gate) == ["lost"]
    assert gate.idle
    await kit.eventually(lambda: gate.gateway.statistics()["pools"]["open"] == 1)


async def test_a_worker_that_answers_in_time_has_no_second_beside_it(rig, kit):
    gate = await race(rig, kit.answer_stream, kit.answer_stream)
    await gate.ask(kit.post())
    await asyncio.sleep(0.1)
    assert gate.dispatcher.edges[-1] == "finished 200"
    assert "hedge" not in gate.dispatcher.edges
    assert len(gate.turns.seen) == 1


async def dies(script):
    await script.die()


def refuses(kit):
    async def refuse(script):
        await kit.answer_json(script, b"503 Service Unavailable", b"{}")

    return refuse


def unserved(kit):
    async def answer(script):
        await kit.answer_json(script, b"404 Not Found", UNSERVED)

    return answer


FAILING = {"dies": lambda kit: dies, "refuses": refuses, "unserved": unserved}
PHASES = {"dies": "sent", "refuses": "refused", "unserved": "unserved"}


@pytest.mark.parametrize("how", FAILING)
async def test_a_second_attempt_that_fails_leaves_the_first_alone(rig, kit, how):
    gate = await race(rig, after(0.2, kit.answer_stream), FAILING[how](kit))
    assert (await gate.ask(kit.post())).body.count(b"data: ") == 5
    assert outcomes(gate) == ["failed"]
    assert gate.dispatcher.edges[:3] == ["ticket", "hedge", f"failed {PHASES[how]}"]
    assert gate.idle


@pytest.mark.parametrize("how", FAILING)
async def test_a_first_attempt_that_fails_leaves_it_to_the_second(rig, kit, how):
    first = after(0.15, FAILING[how](kit))
    gate = await race(rig, first, after(0.3, kit.answer_stream))
    assert (await gate.ask(kit.post())).body.count(b"data: ") == 5
    assert outcomes(gate) == ["took_over"]
    assert len(gate.turns.seen) == 2
    assert gate.idle


@pytest.mark.parametrize("fails", [refuses, unserved])
async def test_when_both_fail_a_third_may_answer(rig, kit, fails):
    gate = await race(rig, after(0.15, fails(kit)), after(0.1, fails(kit)), kit.answer_stream, workers=3)
    assert (await gate.ask(kit.post())).body.count(b"data: ") == 5
    assert len({script.connection for script in gate.turns.seen}) >= 1
    assert len({worker.port for worker in gate.workers if worker.requests}) == 3
    assert gate.idle


async def test_when_neither_serves_the_model_the_last_one_says_so(rig, kit):
    gate = await race(rig, after(0.15, unserved(kit)), after(0.15, unserved(kit)))
    reply = await gate.ask(kit.post())
    assert (reply.status, reply.body) == (404, UNSERVED)
    assert outcomes(gate) == ["took_over"]
    assert gate.idle


async def test_when_both_die_nobody_else_is_tried(rig, kit):
    gate = await race(rig, after(0.15, dies), after(0.1, dies), kit.answer_stream, workers=3)
    reply = await gate.ask(kit.post())
    assert (reply.status, reply.code) == (503, "worker_failed")
    assert len(gate.turns.seen) == 2
    assert gate.idle


async def test_a_client_that_leaves_frees_both(rig, kit):
    gate = await race(rig, silent, silent)
    client = await gate.connect()
    client.writer.write(kit.post())
    await kit.eventually(lambda: len(gate.turns.seen) == 2)
    client.leave()
    await asyncio.wait_for(asyncio.gather(*(seen.gone.wait() for seen in gate.turns.seen)), 1)
    await kit.eventually(lambda: gate.idle)
    assert gate.gateway.statistics()["pools"]["open"] == 0


async def test_the_deadlines_hold_for_both(rig, kit):
    gate = await race(rig, silent, silent, timeouts={"total_s": 0.3})
    reply = await gate.ask(kit.post())
    assert (reply.status, reply.code) == (504, "total_timeout")
    await asyncio.wait_for(asyncio.gather(*(seen.gone.wait() for seen in gate.turns.seen)), 1)
    assert gate.idle


async def test_the_time_of_the_first_is_up_before_that_of_the_second(rig, kit):
    # deadlines are looked at every 0.2 s: the first's is seen to be over by 1.0 s, the second answers at 1.1 s
    timeouts, hedging = {"first_event_s": 0.8}, {**ON, "after_s": 0.4}
    gate = await race(rig, silent, after(0.7, kit.answer_stream), timeouts=timeouts, hedging=hedging)
    assert (await gate.ask(kit.post())).body.count(b"data: ") == 5
    assert outcomes(gate) == ["took_over"]
    assert gate.idle


async def test_a_lost_worker_leaves_it_to_the_second(rig, kit):
    gate = await race(rig, silent, after(0.2, kit.answer_stream), silent, workers=3)
    client = await gate.connect()
    client.writer.write(kit.post())
    await kit.eventually(lambda: len(gate.turns.seen) == 2)
    for _ in range(3):
        gate.fleet.probe_failed(log_of(gate)[0]["worker"], "timed out", 0.0)
    assert (await client.read()).body.count(b"data: ") == 5
    assert outcomes(gate) == ["took_over"]
    assert len(gate.turns.seen) == 2
    await kit.eventually(lambda: gate.idle)


async def test_behind_comments_the_second_worker_answers_in_the_same_stream(rig, kit):
    gate = await race(
        rig,
        silent,
        after(0.2, kit.answer_stream),
        timeouts={"header_hold_s": 0.1, "comment_interval_s": 0.05},
    )
    reply = await gate.ask(kit.post())
    assert reply.status == 200
    assert reply.body.startswith(b": warmroute")
    assert reply.body.count(b"data: ") == 5
    assert reply.body.endswith(kit.DONE)
    assert outcomes(gate) == ["won"]
    assert gate.idle


async def test_behind_comments_an_answer_that_is_no_stream_becomes_an_event(rig, kit):
    async def mistake(script):
        await kit.answer_json(script, b"400 Bad Request", b'{"error":{"message":"no","code":400}}')

    gate = await race(rig, silent, after(0.2, mistake), timeouts={"header_hold_s": 0.1, "comment_interval_s": 0.05})
    reply = await gate.ask(kit.post())
    assert b'"message":"no"' in reply.body
    assert outcomes(gate) == ["won"]
    await asyncio.wait_for(gate.turns.seen[0].gone.wait(), 1)
    assert gate.idle


@pytest.mark.parametrize(
    ("raw", "hedging"),
    [
        ({}, {}),
        ({}, {**ON, "paths": ["/v1/completions"]}),
        ({"body": b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'}, ON),
    ],
    ids=["off", "another path", "whole answer"],
)
async def test_what_is_not_hedged(rig, kit, raw, hedging):
    gate = await race(rig, after(0.2, kit.answer_stream), kit.answer_stream, hedging=hedging)
    assert (await gate.ask(kit.post(**raw))).status == 200
    assert "hedge" not in gate.dispatcher.edges
    assert len(gate.turns.seen) == 1


async def test_an_embedding_is_hedged_though_it_is_no_stream(rig, kit):
    gate = await race(rig, silent, kit.answer_json, hedging={**ON, "paths": ["/v1/embeddings"]})
    reply = await gate.ask(kit.post(b"/v1/embeddings", b'{"model":"m","input":"hi"}'))
    assert reply.status == 200
    assert outcomes(gate) == ["won"]
    assert gate.idle


async def test_no_hedge_beyond_the_retry_budget(rig, kit):
    gate = await race(
        rig,
        after(0.2, kit.answer_stream),
        kit.answer_stream,
        retries={"budget_ratio": 0.0, "budget_floor_per_s": 0.0},
    )
    assert (await gate.ask(kit.post())).status == 200
    assert "no hedge" in gate.dispatcher.edges
    assert len(gate.turns.seen) == 1


async def test_many_races_leave_nothing_behind(rig, kit):
    slow = iter(range(10_000))

    async def mixed(script):
        await after(0.15 if next(slow) % 2 else 0.0, kit.answer_stream)(script)

    gate = await rig(mixed, mixed, mixed, hedging=ON)
    replies = await asyncio.gather(*(gate.ask(kit.post()) for _ in range(60)))
    assert all(reply.body.count(b"data: ") == 5 for reply in replies)
    assert outcomes(gate)
    await kit.eventually(lambda: gate.idle)
    await kit.eventually(lambda: gate.gateway.statistics()["pools"]["open"] == len(idle_connections(gate)))


async def test_a_client_that_does_not_read_stops_both_workers(rig, kit):
    go_on = asyncio.Event()

    async def answer_then(script):
        await go_on.wait()
        await kit.answer_stream(script)

    gate = await race(rig, silent, answer_then)
    client = await gate.connect()
    client.writer.write(kit.post())
    await kit.eventually(lambda: len(gate.turns.seen) == 2)
    (exchange,) = gate.gateway._plane.exchanges
    exchange.client_writable(False)
    go_on.set()
    await asyncio.sleep(0.1)
    assert "first_token" not in gate.dispatcher.edges
    exchange.client_writable(True)
    assert (await client.read()).status == 200
    assert outcomes(gate) == ["won"]
