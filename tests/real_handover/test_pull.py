"""Two prefill and two decode workers with NIXL: texts are those of one worker, also while workers stop, die and return.

What a fault must not bring is text of wrong KV cache. So each text is compared, and each worker's blocks are free
afterwards.
"""

import asyncio
from contextlib import asynccontextmanager, suppress
from itertools import product

import httpx
import pytest

from tests.real_handover.asking import ANSWER_TOKENS, GREEDY, Told, ask, chat, completion, message, response
from tests.real_handover.site import freeze, frozen, metric, thaw, until

STREAM_TOKENS = 1_500
ROLES = ("prefill", "prefill", "decode", "decode")


@pytest.fixture(scope="module")
def site(start):
    return start("nixl_pull", ROLES)


GREEDY_STREAM = (
    "/v1/chat/completions",
    GREEDY | {"max_tokens": STREAM_TOKENS, "messages": [{"role": "user", "content": "count"}]},
)


class Handover:
    """One request whose prompt the named prefill worker computes. `text` is what one worker answers."""

    def __init__(self, site, seed, prefill, **options):
        self.site = site
        self.prefill = prefill
        self.other = next(worker for worker in site.prefills if worker is not prefill)
        self.options = options
        self.path, self.body = completion(seed)
        self.answer = None

    async def begin(self):
        await self.site.recovered()
        self.text, _ = await ask(self.other.url, self.path, self.body)
        self.outcomes_before = self.site.outcomes()
        self.prefills_before = await self.site.steps("prefill")
        self.answer = asyncio.create_task(
            ask(self.site.url, self.path, self.body, prefill=self.prefill, **self.options)
        )

    async def planned(self):
        decision = await until(self.site.decision)
        return next(worker for worker in self.site.decodes if worker.id == decision["worker"])

    async def prefilled(self):
        """Wait until the prefill worker has answered, and the decode worker has been sent the parameters."""
        await until(lambda: self._prefilled())

    async def _prefilled(self):
        return await self.site.steps("prefill") > self.prefills_before

    async def ends_with(self, *outcomes):
        assert (await self.answer)[0] == self.text
        before = self.outcomes_before
        new = {name for name, count in self.site.outcomes().items() if count > before.get(name, 0)}
        assert new <= {*outcomes, "handed_over"} and new & {*outcomes}, new


@asynccontextmanager
async def handover(site, seed, prefill, **options):
    one = Handover(site, seed, prefill, **options)
    await one.begin()
    try:
        yield one
    finally:
        one.answer.cancel()
        with suppress(asyncio.CancelledError, Told, httpx.HTTPError):
            await one.answer
    await site.at_rest()


# without faults


async def test_prompts_beside_streams_are_handed_over_where_that_costs_less(site):
    path, body = GREEDY_STREAM
    running = [asyncio.create_task(ask(site.url, path, body, stream=True)) for _ in range(4)]
    try:
        await until(lambda: sum(metric(worker, "num_requests_running") for worker in site.decodes) >= len(running), 60)
        for seed, request_of in enumerate((completion, chat, completion, chat)):
            path, body = request_of(f"beside {seed}")
            text, _ = await ask(site.url, path, body)
            assert text == (await ask(site.prefills[0].url, path, body))[0]
        assert site.outcomes()["handed_over"] > 0
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_the_text_is_that_of_one_worker(site):
    await site.at_rest()
    before, read = site.outcomes()["handed_over"], reads(site)
    for seed, (request_of, stream, prefill) in enumerate(product((completion, chat), (False, True), site.prefills)):
        path, body = request_of(f"text {seed}")
        text, usage = await ask(site.url, path, body, stream=stream, prefill=prefill)
        alone, known = await ask(prefill.url, path, body)
        assert text == alone
        assert usage["prompt_tokens"] == known["prompt_tokens"]
        assert usage["completion_tokens"] == ANSWER_TOKENS
        assert usage["prompt_tokens_details"]["cached_tokens"] < 32  # of a chat, at most what all chats begin with
    assert site.outcomes()["handed_over"] == before + 8
    assert reads(site) == read + 8  # parameters are used once
    await site.at_rest()


def reads(site):
    return sum(metric(worker, "nixl_xfer_time_seconds_count") for worker in site.decodes)


async def test_messages_and_responses_have_the_text_of_one_worker(site):
    before = site.outcomes()["handed_over"]
    cases = product((message, response), (False, True))
    for seed, ((request_of, stream), prefill) in enumerate(zip(cases, site.prefills * 2, strict=True)):
        path, body = request_of(f"other {seed}")
        text, _ = await ask(site.url, path, body, stream=stream, prefill=prefill)
        assert text == (await ask(prefill.url, path, body))[0]
    assert site.outcomes()["handed_over"] == before + 4


# clients


HOSTILE = (
    {"do_remote_prefill": True},
    {"do_remote_prefill": True, "remote_engine_id": "x", "remote_host": "127.0.0.1", "remote_port": 1, "tp_size": 1},
    {"do_remote_decode": True, "do_remote_prefill": False},
    [],
)
"""On vLLM itself, the first two end the engine of the worker that gets them."""


async def test_parameters_of_clients_reach_no_worker(site):
    with site.another_gateway() as url:
        path, body = completion("hostile")
        for params in HOSTILE:
            with pytest.raises(Told, match="kv_transfer_params"):
                await ask(url, path, body | {"kv_transfer_params": params})
        assert (await ask(url, path, body))[0] == (await ask(site.prefills[0].url, path, body))[0]
    assert all(worker.process.alive for worker in site.workers)


@pytest.mark.parametrize("step", ["prefill", "handover", "answer"])
async def test_a_client_that_leaves_frees_both_workers(site, step):
    prefill = site.prefills[0]
    standing = {"prefill": [prefill], "handover": site.decodes, "answer": []}[step]
    async with handover(site, f"left in {step}", prefill, stream=True) as one:
        with frozen(*standing):
            await (one.prefilled() if step == "handover" else one.planned())
            if step == "answer":
                await until(lambda: any(metric(worker, "num_requests_running") for worker in site.decodes))
            one.answer.cancel()


# time


async def test_blocks_are_not_read_after_their_lease(site):
    """The gateway stands still until the lease has ended. It then computes the prompt again."""
    prefill = site.prefills[0]
    expired = metric(prefill, "nixl_num_kv_expired_reqs_total")
    async with handover(site, "stale", prefill) as one:
        with frozen(prefill):
            await one.planned()
            freeze(site.gateway)
        try:
            await until(lambda: metric(prefill, "nixl_num_kv_expired_reqs_total") > expired, 60)
        finally:
            thaw(site.gateway)
        await one.ends_with("lease_expired")


async def test_a_prefill_worker_that_stands_still_costs_only_time(site):
    async with handover(site, "still prefill", site.prefills[0]) as one:
        with frozen(one.prefill):
            await one.ends_with("prefill_failed", "handed_over")


async def test_a_prefill_worker_that_stands_still_while_it_is_read_costs_only_time(site):
    async with handover(site, "still source", site.prefills[0]) as one:
        with frozen(*site.decodes):
            await one.prefilled()
            freeze(one.prefill.process)
        try:
            await one.ends_with("decode_failed", "lease_expired")
        finally:
            thaw(one.prefill.process)


async def test_a_decode_worker_that_stands_still_costs_only_time(site):
    async with handover(site, "still decode", site.prefills[0]) as one:
        with frozen(*site.decodes):
            decode = await one.planned()
            await one.prefilled()
            thaw(next(worker for worker in site.decodes if worker is not decode).process)
            await one.ends_with("decode_failed", "lease_expired")


# death: the last tests, in this order


async def test_a_prefill_worker_that_dies_while_it_is_read_costs_only_time(site):
    async with handover(site, "dead source", site.prefills[0]) as one:
        with frozen(*site.decodes):
            await one.prefilled()
            one.prefill.kill()
        await one.ends_with("decode_failed")
    one.prefill.start()


async def test_a_restarted_prefill_worker_hands_over_again(site):
    """Its engine id is another one, and it is the only prefill worker: the other one dies in its step."""
    restarted, other = site.prefills
    await asyncio.to_thread(restarted.wait)
    async with handover(site, "dead prefill", other) as one:
        with frozen(other):
            await one.planned()
            other.kill()
        await one.ends_with("prefill_failed", "handed_over")
    path, body = completion("restarted")
    before = site.outcomes()["handed_over"]

    async def handed_over():
        assert (await ask(site.url, path, body, prefill=restarted))[0] == (await ask(restarted.url, path, body))[0]
        return site.outcomes()["handed_over"] > before

    await until(handed_over)  # once the gateway has seen the worker return


async def test_a_decode_worker_that_dies_before_its_answer_costs_only_time(site):
    prefill = site.prefills[0]
    await site.recovered()
    path, body = completion("dead decode")
    text, _ = await ask(prefill.url, path, body)
    with frozen(*site.decodes):
        before = await site.steps("prefill")
        answer = asyncio.create_task(ask(site.url, path, body, prefill=prefill))
        chosen = (await until(site.decision))["worker"]
        await until(lambda: _more_than(site, before))
        victim, left = sorted(site.decodes, key=lambda worker: worker.id != chosen)
        victim.kill()
    assert (await answer)[0] == text
    path, body = GREEDY_STREAM
    answer = asyncio.create_task(ask(site.url, path, body, stream=True, prefill=prefill))
    await until(lambda: metric(left, "num_requests_running"))
    left.kill()
    with pytest.raises(Told):
        await answer
    await site.at_rest()


async def _more_than(site, before):
    return await site.steps("prefill") > before
