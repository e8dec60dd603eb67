import asyncio

import msgspec

from router.config.model import Config, RouteConfig
from router.placement.named_policies import named_policies
from tests.support.answers import after, answer_json, answer_stream
from tests.support.raw_client import PLAIN, post
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import eventually


def team(name):
    return f"x-team: {name}\r\n".encode()


LIMITED = [{"name": "eval", "match": {"header": {"x-team": "eval"}}, "max_requests": 1}, {"name": "rest"}]


def limited(**queue):
    return [{**LIMITED[0], **queue}, LIMITED[1]]


def figures(gate, route="eval"):
    return gate.gateway.statistics()["routes"][route]


async def send(gate, *extra):
    return [await gate.send(post(body=PLAIN, extra=lines)) for lines in extra]


async def answering(gate, script=answer_json):
    """Start one more worker; it is not in the fleet yet."""
    worker = await ScriptedWorker(script).start()
    gate.workers.append(worker)
    return worker


async def test_the_request_carries_its_route_and_policy(rig):
    routes = [
        {"name": "eval", "match": {"header": {"x-team": "eval"}}, "policy": "batch"},
        {"name": "long", "match": {"prompt_tokens": ">1000"}, "policy": "batch"},
        {"name": "rest", "split": {"default": 1}},
    ]
    gate = await rig(answer_json, routes=routes, policies={"batch": {"rule": "lpwl"}})
    await gate.ask(post(body=PLAIN, extra=team("eval")))
    await gate.ask(post(body=PLAIN))
    found = [(request.route, request.policy) for request in gate.recorded.requests]
    assert found == [("eval", "batch"), ("rest", "default")]
    assert [record.route for record in gate.core.log.latest(10)] == ["rest", "eval"]


async def test_a_route_at_its_limit_lets_requests_wait_in_order(rig):
    go = asyncio.Event()
    gate = await rig(after(go), routes=limited())
    clients = await send(gate, team("eval"))
    await eventually(lambda: figures(gate)["running"] == 1)
    for waiting in (1, 2):
        clients += await send(gate, team("eval"))
        await eventually(lambda waiting=waiting: figures(gate)["queued"] == waiting)
    clients += await send(gate, team("other"))
    await eventually(lambda: len(gate.workers[0].requests) == 2)  # another route is not limited
    go.set()
    assert [(await client.read()).status for client in clients] == [200] * 4
    assert figures(gate) == {"running": 0, "queued": 0, "refused": 0}
    await eventually(lambda: gate.idle)


async def test_a_full_queue_refuses(rig):
    go = asyncio.Event()
    gate = await rig(after(go), routes=limited(max_queued_requests=1))
    clients = await send(gate, team("eval"))
    await eventually(lambda: figures(gate)["running"] == 1)
    clients += await send(gate, team("eval"))
    await eventually(lambda: figures(gate)["queued"] == 1)
    reply = await gate.ask(post(body=PLAIN, extra=team("eval")))
    assert (reply.status, reply.code) == (503, "route_busy")
    assert int(reply.header(b"retry-after")) >= 1
    assert b"route eval: 1 of its requests" in reply.body
    go.set()
    assert [(await client.read()).status for client in clients] == [200] * 2
    assert figures(gate)["refused"] == 1
    assert ("warmroute_route_refusals", ("eval",), 1) in list(gate.gateway.readings())


async def test_a_route_without_a_queue_refuses_at_once(rig):
    go = asyncio.Event()
    gate = await rig(after(go), routes=limited(queue_s=0))
    (client,) = await send(gate, team("eval"))
    await eventually(lambda: figures(gate)["running"] == 1)
    reply = await gate.ask(post(body=PLAIN, extra=team("eval")))
    assert (reply.status, reply.code) == (503, "route_busy")
    go.set()
    assert (await client.read()).status == 200


async def test_a_wait_ends_after_the_routes_own_time(rig):
    go = asyncio.Event()
    gate = await rig(after(go), routes=limited(queue_s=0.1))
    (client,) = await send(gate, team("eval"))
    await eventually(lambda: figures(gate)["running"] == 1)
    reply = await gate.ask(post(body=PLAIN, extra=team("eval")))
    assert (reply.status, reply.code) == (503, "route_busy")
    assert figures(gate)["queued"] == 0
    go.set()
    assert (await client.read()).status == 200


async def test_a_client_that_leaves_gives_its_place_to_the_next(rig):
    go = asyncio.Event()
    gate = await rig(after(go), routes=limited())
    first, second, third = await send(gate, team("eval"), team("eval"), team("eval"))
    await eventually(lambda: figures(gate) == {"running": 1, "queued": 2, "refused": 0})
    served = len(gate.workers[0].requests)
    second.leave()
    await eventually(lambda: figures(gate)["queued"] == 1)
    first.leave()
    await eventually(lambda: figures(gate) == {"running": 1, "queued": 0, "refused": 0})
    await eventually(lambda: len(gate.workers[0].requests) == served + 1)
    go.set()
    assert (await third.read()).status == 200
    await eventually(lambda: figures(gate)["running"] == 0)


async def test_a_higher_limit_admits_requests_that_wait(rig):
    go = asyncio.Event()
    gate = await rig(after(go), routes=limited())
    clients = await send(gate, *[team("eval")] * 4)
    await eventually(lambda: figures(gate) == {"running": 1, "queued": 3, "refused": 0})
    change = msgspec.convert([{**LIMITED[0], "max_requests": 3}, LIMITED[1]], tuple[RouteConfig, ...])
    gate.gateway.use_routes(change)
    await eventually(lambda: figures(gate) == {"running": 3, "queued": 1, "refused": 0})
    gate.gateway.use_routes(())
    await eventually(lambda: figures(gate) == {"running": 4, "queued": 0, "refused": 0})
    go.set()
    assert [(await client.read()).status for client in clients] == [200] * 4
    await eventually(lambda: figures(gate)["running"] == 0)


async def test_requests_that_wait_for_a_worker_fill_the_routes_queue(rig):
    gate = await rig(routes=limited(max_queued_requests=1))
    await send(gate, team("eval"))
    await eventually(lambda: figures(gate)["queued"] == 1)
    reply = await gate.ask(post(body=PLAIN, extra=team("eval")))
    assert (reply.status, reply.code) == (503, "route_busy")


async def test_an_admitted_request_without_a_ready_worker_waits_for_one(rig):
    gate = await rig(after(asyncio.Event()), routes=[{**LIMITED[0], "max_requests": 2}, LIMITED[1]])
    first, second, third = await send(gate, *[team("eval")] * 3)
    await eventually(lambda: figures(gate) == {"running": 2, "queued": 1, "refused": 0})
    gate.fleet.drain(gate.workers[0].id)
    first.leave()
    second.leave()
    await eventually(lambda: gate.gateway.statistics()["queued"] == 1)
    assert figures(gate) == {"running": 1, "queued": 1, "refused": 0}
    assert gate.recorded.events.count("queued") == 1
    gate.join(await answering(gate))
    assert (await third.read()).status == 200
    await eventually(lambda: figures(gate) == {"running": 0, "queued": 0, "refused": 0})


async def test_a_request_that_waits_for_a_worker_keeps_to_a_new_limit_of_its_route(rig):
    go = asyncio.Event()
    gate = await rig(routes=[{**LIMITED[0], "max_requests": 0}, LIMITED[1]])
    clients = await send(gate, *[team("eval")] * 2)
    await eventually(lambda: gate.gateway.statistics()["queued"] == 2)
    gate.gateway.use_routes(msgspec.convert(LIMITED, tuple[RouteConfig, ...]))
    gate.join(await answering(gate, after(go)))
    await eventually(lambda: figures(gate) == {"running": 1, "queued": 1, "refused": 0})
    assert gate.gateway.statistics()["queued"] == 0
    go.set()
    assert [(await client.read()).status for client in clients] == [200] * 2


async def test_service_levels_are_judged_by_route(rig):
    go = asyncio.Event()

    async def late(call):
        await go.wait()
        await answer_stream(call)

    routes = [{"name": "strict", "match": {"header": {"x-team": "eval"}}, "slo": {"ttft": 0.005, "tpot": 10}}]
    gate = await rig(late, routes=[*routes, {"name": "rest", "slo": {"ttft": 60}}])
    clients = [await gate.connect() for _ in range(2)]
    for client, lines in zip(clients, (team("eval"), b""), strict=True):
        client.writer.write(post(extra=lines))
    await eventually(lambda: len(gate.workers[0].requests) == 2)
    asked_s = gate.loop.time()
    await eventually(lambda: gate.loop.time() > asked_s + 0.01)
    go.set()
    assert [(await client.read()).status for client in clients] == [200] * 2
    await eventually(lambda: len(gate.counted("service_level_requests")) == 3)
    assert sorted(gate.counted("service_level_requests")) == [
        ("rest", "ttft", "true"),
        ("strict", "tpot", "true"),
        ("strict", "ttft", "false"),
    ]


async def test_service_levels_are_counted_by_the_role_of_the_worker(rig):
    gate = await rig(answer_stream, routes=[{"name": "rest", "slo": {"ttft": 60}}])
    for _ in range(6):
        assert (await gate.ask(post())).status == 200
    await eventually(lambda: gate.gateway.attainment(gate.loop.time()).get("mixed") == 1.0)


async def test_a_models_service_levels_hold_where_the_route_has_none(rig):
    gate = await rig(answer_stream, models={"m": {"slo": {"ttft": 60}}})
    assert (await gate.ask(post())).status == 200
    await eventually(lambda: gate.counted("service_level_requests") == [("default", "ttft", "true")])


def test_policies_and_shadows_are_built_from_the_settings():
    settings = {"policies": {"batch": {"rule": "lpwl"}}, "routes": [{"name": "a", "shadow": ["batch", "random"]}]}
    config = msgspec.convert(settings, Config)
    named, shadows = named_policies(config.policy, config.policies, config.routes, lambda *_: None)
    assert {name: runner.rule for name, runner in named.items()} == {"batch": "lpwl"}
    assert shadows["a"].names == ("batch", "random")
