"""Several pools in one picker: each has a port, its own workers, and its own readiness."""

from contextlib import asynccontextmanager

import grpc
import pytest

from router.config.model import WorkerConfig
from router.config.problems import ConfigError
from router.picker.protocol.health_pb2 import HealthCheckRequest, HealthCheckResponse
from router.picker.protocol.names import HEALTH_CHECK
from router.picker.settings import picker_config
from router.settings import load_with_places
from tests.support.gateway_stream import GatewayStream, body, chat, model_facts, picked, picker_rig, request_headers
from tests.support.gateway_stream import refused as refusal_of

CHAT, EMBED = ("10.0.0.1:8000", "10.0.0.2:8000"), ("10.0.1.1:8000",)
POOLS = {name: {"port": 0, "workers": {"pool": name}} for name in ("chat", "embed")}


def workers(**pools):
    return [WorkerConfig(url=f"http://{one}", labels={"pool": name}) for name, urls in pools.items() for one in urls]


@asynccontextmanager
async def two_pools(**options):
    """Yield a rig, and a channel to each of its pools."""
    async with picker_rig(workers(chat=CHAT, embed=EMBED), picker={"pools": POOLS}, **options) as rig:
        addresses = [one.partition("://")[2] for one in rig.system.ports._addresses]
        async with grpc.aio.insecure_channel(addresses[0]) as one, grpc.aio.insecure_channel(addresses[1]) as other:
            yield rig, one, other


async def ask(channel, *messages):
    return (await (await GatewayStream(channel).send(*messages)).rest())[0]


async def pick(channel, **options):
    return picked(await ask(channel, request_headers(**options), body(chat())))


async def status(channel, service=""):
    call = channel.unary_unary(HEALTH_CHECK, HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString)
    return (await call(HealthCheckRequest(service=service))).status


async def test_a_port_picks_among_the_workers_of_its_pool():
    async with two_pools() as (rig, at_chat, at_embed):
        assert {await pick(at_chat) for _ in range(6)} == set(CHAT)
        assert {await pick(at_embed) for _ in range(6)} == set(EMBED)
        assert rig.picker._parts.picks.values == {("picked", "chat"): 6.0, ("picked", "embed"): 6.0}


async def test_a_worker_moves_between_pools_with_its_labels():
    async with two_pools() as (rig, at_chat, at_embed):
        rig.system.running.change_worker(WorkerConfig(url=f"http://{CHAT[0]}", labels={"pool": "embed"}))
        assert {await pick(at_chat) for _ in range(4)} == {CHAT[1]}
        assert {await pick(at_embed) for _ in range(4)} == {CHAT[0], *EMBED}


async def test_a_subset_is_a_part_of_the_pool():
    async with two_pools() as (_, at_chat, at_embed):
        assert await pick(at_chat, subset=[CHAT[1], EMBED[0]]) == CHAT[1]
        answer = await ask(at_embed, request_headers(subset=[CHAT[1]]), body(chat()))
        assert refusal_of(answer)[0] == 503


async def test_a_pool_without_a_ready_worker_is_not_ready_and_picks_nobody_elsewhere():
    async with two_pools(timeouts={"queue_s": 0.0}) as (rig, at_chat, at_embed):
        rig.eject(EMBED[0])
        answer = await ask(at_embed, request_headers(), body(chat()))
        assert refusal_of(answer)[0] == 503
        assert await status(at_embed) == HealthCheckResponse.NOT_SERVING
        assert await status(at_chat) == HealthCheckResponse.SERVING


async def test_a_model_of_another_pool_does_not_exist_here():
    async with two_pools(facts=model_facts("m")) as (rig, at_chat, at_embed):
        rig.ready(*EMBED, facts=model_facts("e"))
        assert picked(await ask(at_embed, request_headers(), body(chat(model="e")))) == EMBED[0]
        code, error = refusal_of(await ask(at_chat, request_headers(), body(chat(model="e"))))
        assert (code, error["code"]) == (404, "model_not_found")
        assert error["message"].endswith("the pool chat serves: m.")


async def test_a_request_without_a_model_goes_to_the_only_one_of_the_pool():
    async with two_pools(facts=model_facts("m")) as (rig, at_chat, _):
        rig.ready(*EMBED, facts=model_facts("e"))
        unnamed = b'{"messages": [{"role": "user", "content": "hello"}]}'
        assert picked(await ask(at_chat, request_headers(), body(unnamed))) in CHAT


async def test_all_ports_are_closed_at_the_end():
    async with two_pools() as (rig, at_chat, at_embed):
        await rig.picker.stop_accepting()
        for channel in (at_chat, at_embed):
            with pytest.raises(grpc.aio.AioRpcError):
                await pick(channel)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"port": "9002"}, "remove port"),
        ({"picker.pools.a.port": "8001"}, "taken by admin_port"),
        ({"picker.pools.b": '{"port": 9010, "workers": {"x": "y"}}'}, "taken by picker.pools.a"),
        ({"picker.pools.B": '{"port": 9011, "workers": {"x": "y"}}'}, "cannot name a pool"),
        ({"picker.pools.b": '{"port": 9011, "workers": {}}'}, "has every worker"),
        ({"discovery.sources.x.kubernetes.pool": "chat"}, "no pool of picker.pools is called chat"),
    ],
)
def test_mistakes_in_pools_are_named(given, problem):
    base = {"picker.pools.a.port": "9010", "picker.pools.a.workers": '{"pool": "a"}'}
    assert picker_config(load_with_places(base, {}, None)).picker.pools["a"].port == 9010
    with pytest.raises(ConfigError, match=problem):
        picker_config(load_with_places({**base, **given}, {}, None))
