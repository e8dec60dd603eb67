"""Decode workers that wait for a prefill, with the fields and the failures of vLLM's push and Mooncake connectors."""

import asyncio

import pytest

from backends.vllm.handover.connector import HandoverPeer, Legs
from backends.vllm.handover.connectors import CONNECTORS
from backends.vllm.handover.mooncake import read_engine_ids
from backends.vllm.handover.prefill_answer import read_prefill_answer

COMPLETIONS = "/v1/completions"
BOTH = pytest.mark.parametrize("name", ["nixl_push", "mooncake"])
PROMPT = list(range(300, 420))


class Pair:
    """A prefill and a decode worker with one connector."""

    def __init__(self, name, prefill, decode):
        self.connector = CONNECTORS[name]
        self.prefill, self.decode = prefill, decode

    def legs(self, number=0):
        port = self.prefill.running.bound.port
        engine_id = self.prefill.worker.transfers.engine_id
        peer = HandoverPeer(host="127.0.0.1", side_port=port, engine_id=engine_id)
        return Legs(transfer_id=f"t-{number}", prefill=peer, decode=HandoverPeer(host="127.0.0.1"))

    async def ask(self, client, params, request_id="t-0", **fields):
        body = {"prompt": PROMPT, "kv_transfer_params": params, **fields}
        return await client.post(COMPLETIONS, json=body, headers={"x-request-id": request_id})

    def sent_prefill(self, **fields):
        params = self.connector.prefill_params(self.legs())
        return asyncio.ensure_future(self.ask(self.prefill, params, max_tokens=1, **fields))

    def sent_decode(self, **changes):
        params = self.connector.decode_params(self.legs(), None)
        return asyncio.ensure_future(self.ask(self.decode, params | changes))


@pytest.fixture
def lease_s():
    return 30.0


@pytest.fixture
async def pair(worker_with, lease_s, request):
    name = request.getfixturevalue("name")
    settings = {"kv_connector": name, "kv_lease_s": lease_s}
    async with worker_with(**settings) as prefill, worker_with(**settings) as decode:
        yield Pair(name, prefill, decode)


def moved(client):
    return client.worker.statistics()["transfers"]


@BOTH
@pytest.mark.parametrize("first", ["prefill", "decode"])
async def test_the_two_requests_may_come_in_either_order(pair, name, first, until):
    if first == "prefill":
        prefill = pair.sent_prefill()
        await until(lambda: moved(pair.prefill)["leased"] == 1)
        decode = pair.sent_decode()
    else:
        decode = pair.sent_decode()
        await until(lambda: moved(pair.decode)["waiting"] == 1)
        prefill = pair.sent_prefill()
    answer = (await decode).json()
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": len(PROMPT)}
    assert pair.decode.engine()["prefill_tokens"] == 1
    assert (await prefill).json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert (moved(pair.prefill)["leased"], pair.prefill.engine()["kept_blocks"]) == (0, 0)
    assert (moved(pair.decode)["received"], moved(pair.decode)["waiting"]) == (1, 0)


@pytest.mark.parametrize("name", ["nixl_push"])
async def test_the_answer_of_a_push_introduces_its_worker(pair, name):
    answer = read_prefill_answer((await pair.sent_prefill()).content)
    peer = pair.connector.introduced(HandoverPeer(host="127.0.0.1"), answer)
    assert (peer.engine_id, peer.side_port) == (pair.legs().prefill.engine_id, pair.legs().prefill.side_port)
    assert answer.params["transfer_mode"] == "push"


@pytest.mark.parametrize("name", ["mooncake"])
async def test_the_bootstrap_server_introduces_a_worker_and_its_answer_does_not(pair, name):
    engines = read_engine_ids((await pair.prefill.get("/query")).content)
    assert engines == {0: pair.prefill.worker.transfers.engine_id}
    assert "kv_transfer_params" not in (await pair.sent_prefill()).json()


@pytest.mark.parametrize(("name", "lease_s"), [("nixl_push", 1.0)])
async def test_requests_of_a_push_with_different_ids_never_meet(pair, name, until):
    params = pair.connector.decode_params(pair.legs(), None)
    decode = asyncio.ensure_future(pair.ask(pair.decode, params, "other"))
    await until(lambda: moved(pair.decode)["waiting"] == 1)
    await pair.sent_prefill()
    await until(lambda: moved(pair.prefill)["expired"] == 1)
    decode.cancel()
    await until(lambda: pair.decode.worker.server_load == 0)
    assert moved(pair.decode)["waiting"] == 1  # its blocks stay in use


@pytest.mark.parametrize(("name", "lease_s"), [("mooncake", 1.0)])
async def test_a_worker_of_mooncake_waits_only_for_a_while(pair, name):
    answer = await pair.sent_decode()
    assert (answer.status_code, moved(pair.decode)["failed"], moved(pair.decode)["waiting"]) == (500, 1, 0)


@pytest.mark.parametrize("name", ["mooncake"])
async def test_a_prefill_that_ends_by_a_stop_token_keeps_no_blocks(pair, name):
    pair.prefill.worker._draw_stop = lambda: 0.0
    object.__setattr__(pair.prefill.worker.settings, "stop_probability", 1.0)
    assert (await pair.sent_prefill()).json()["choices"][0]["finish_reason"] == "stop"
    assert (moved(pair.prefill)["leased"], pair.prefill.engine()["kept_blocks"]) == (0, 0)


@BOTH
async def test_an_earlier_process_fails_the_load(pair, name):
    answer = await pair.sent_decode(remote_engine_id="another")
    assert (answer.status_code, moved(pair.decode)["failed"], moved(pair.decode)["waiting"]) == (500, 1, 0)


@pytest.mark.parametrize("name", ["nixl_push"])
async def test_an_incomplete_set_of_parameters_ends_the_engine(pair, name):
    assert (await pair.sent_decode(remote_request_id=None)).status_code == 500
    assert (await pair.decode.get("/health")).status_code == 503


@BOTH
async def test_loads_fail_on_demand_and_a_prefill_that_is_aborted_keeps_nothing(pair, name, until):
    pair.decode.worker.transfers.faults.failed_loads = True
    assert (await pair.sent_decode()).status_code == 500
    pair.prefill.worker.clock.freeze()
    prefill = pair.sent_prefill()
    await until(lambda: pair.prefill.worker.server_load == 1)
    prefill.cancel()
    await until(lambda: pair.prefill.worker.server_load == 0)
    pair.prefill.worker.clock.thaw()
    assert (moved(pair.prefill)["leased"], pair.prefill.engine()["kept_blocks"]) == (0, 0)
