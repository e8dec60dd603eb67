import msgspec

from router.config.model import RouteConfig
from tests.support.answers import answer_json
from tests.support.raw_client import PLAIN, post

BATCH = {"match": {"header": {"x-batch": "1"}}, "name": "batch"}
MARKED = [BATCH | {"layers": {"response_header": {"name": "X-Served-For", "value": "batch"}}}, {"name": "chat"}]


async def header(gate, extra=b"X-Batch: 1\r\n"):
    return (await gate.ask(post(body=PLAIN, extra=extra))).header(b"x-served-for")


async def test_each_response_of_the_route_has_the_header(rig):
    gate = await rig(answer_json, routes=MARKED)
    assert (await header(gate), await header(gate, b"")) == (b"batch", None)


async def test_the_gateways_own_errors_have_it_too(rig):
    gate = await rig(routes=MARKED, timeouts={"queue_s": 0})
    reply = await gate.ask(post(body=PLAIN, extra=b"X-Batch: 1\r\n"))
    assert (reply.status, reply.header(b"x-served-for")) == (503, b"batch")


async def test_routes_switch_it_on_and_off(rig):
    gate = await rig(answer_json)
    assert await header(gate) is None
    gate.gateway.use_routes(msgspec.convert(MARKED, tuple[RouteConfig, ...]))
    assert await header(gate) == b"batch"
    gate.gateway.use_routes(())
    assert await header(gate) is None
