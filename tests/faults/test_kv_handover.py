"""KV handovers between real processes while workers die and restart.

Each test ends with `Site.accounted`: every planned handover has an outcome, nothing is reserved, no worker has a block
in use, and none was read after its lease.
"""

import asyncio
import json
import random
from contextlib import asynccontextmanager

import pytest

from loadtest.load.http import Client
from loadtest.load.seen import Kind, observe
from loadtest.soak.fleet import Fleet, FleetShape
from tests.faults.conftest import MODEL, Lab
from tests.support.exchanges import exchanged

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

COMPLETIONS = "/v1/completions"
CONNECTOR = ("--kv-connector", "nixl_pull", "--kv-lease", "4", "--kv-transfer-speed", "40000")
"""A transfer of `TOKENS` takes half a second, so that it can be seen under way."""
HANDOVER = {
    "connector": "nixl_pull", "lease_s": 4, "latency_s": 0.001, "transfer_tokens_per_s": 1e9,
}  # fmt: skip
TOKENS = 4_000
STREAMS = 4
TRIES = 30
STREAMED = {"answer": 60, "stream": True, "stream_options": {"include_usage": True}}
DIED = {Kind.ERROR_EVENT, Kind.CUT}


class Site(Lab):
    """Two prefill and two decode workers, and streams meanwhile."""

    def __init__(self, fleet):
        super().__init__(fleet)
        self.prefills, self.decodes = fleet.workers[:2], fleet.workers[2:4]
        self.random = random.Random(0)
        self.planned_before = 0
        self.outcomes_before = {}

    async def begin(self):
        assert await self.admin.until_ready([worker.id for worker in self.workers], 60)
        self.before = await self._settled()
        self.planned_before = await self.planned()
        self.outcomes_before = await self.outcomes()

    def prompt(self, tokens):
        return self.random.choices(range(300, 7_000), k=tokens)

    async def ask(self, tokens=TOKENS, answer=4, **fields):
        """Send one prompt of about `tokens` that no worker has cached."""
        length = self.random.randint(tokens * 3 // 4, tokens)
        body = {"model": MODEL, "prompt": self.prompt(length), "max_tokens": answer, "ignore_eos": True} | fields
        client = Client(self.fleet.url)
        try:
            return await observe(client, COMPLETIONS, body)
        finally:
            client.close()

    async def complete(self, count=1, **fields):
        """Send prompts at once, all of which get whole answers."""
        seen = await asyncio.gather(*[self.ask(**fields) for _ in range(count)])
        assert {one.kind for one in seen} == {Kind.COMPLETE}, seen

    async def caught(self, condition, **fields):
        """Ask until `condition` holds of a handover under way. Return the request's task, and what the condition said.

        The gateway hands over what it finds cheaper so, which is most of these prompts.
        """
        for _ in range(TRIES):
            asking = asyncio.create_task(self.ask(**fields))
            while not asking.done():
                if found := await condition():
                    return asking, found
            assert asking.result().kind is Kind.COMPLETE
        raise AssertionError("no handover was seen under way")

    @asynccontextmanager
    async def streams(self):
        """Let streams run on the decode workers, so that a handover pays."""

        async def play():
            while True:
                await self.ask(tokens=8, answer=2_000, stream=True, stream_options={"include_usage": True})
                await asyncio.sleep(0.05)  # where no worker is ready

        playing = [asyncio.create_task(play()) for _ in range(STREAMS)]
        try:
            await self.eventually(self._streaming)
            yield
        finally:
            for task in playing:
                task.cancel()
            await asyncio.gather(*playing, return_exceptions=True)

    async def _streaming(self):
        return sum([await self.engine(worker, "vllm:num_requests_running") for worker in self.decodes]) >= STREAMS

    # what the workers do

    async def serves(self, worker):
        client = Client(f"http://{worker.id}")
        try:
            async with exchanged(client, client.request_bytes("GET", "/load")) as response:
                return json.loads(await response.read())["server_load"]
        finally:
            client.close()

    async def computing(self):
        for worker in self.prefills:
            if worker.process.alive and await self.serves(worker):
                return {"prefill": worker}
        return None

    async def handing(self):
        """Return the prefill worker and the decode worker of a prompt that has been computed and is not read yet."""
        for worker in self.prefills:
            if not worker.process.alive or await self.serves(worker):
                continue
            if await self.engine(worker, "vllm:kv_cache_usage_perc") and (decode := await self._chosen(begun=False)):
                return {"prefill": worker, "decode": decode}
        return None

    async def answering(self):
        """Return the decode worker of a prompt whose answer has begun."""
        decode = await self._chosen(begun=True)
        return decode and {"decode": decode}

    async def _chosen(self, *, begun):
        for one in await self.decisions(30):
            if (
                one["outcome"] == "running"
                and one["prompt_tokens"] >= TOKENS // 2
                and (one["ttft_s"] is not None) is begun
            ):
                return next(worker for worker in self.decodes if worker.id == one["worker"])
        return None

    # what the gateway says

    async def decisions(self, limit):
        """Return those of the latest decisions that chose the decode worker of a pair, newest first."""
        answer = await self.admin.ask("GET", f"/admin/v1/decisions?limit={limit}&candidates=chosen")
        return [one for one in answer.json()["decisions"] if one["reason"].startswith("decode after")]

    async def planned(self):
        return len(await self.decisions(10_000))

    async def outcomes(self):
        text = (await self.admin.ask("GET", "/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith("warmroute_handovers_total{")]
        return {line.split('outcome="')[1].split('"')[0]: int(float(line.rsplit(" ", 1)[1])) for line in lines}

    async def new_outcomes(self):
        before = self.outcomes_before
        return {name: n - before.get(name, 0) for name, n in (await self.outcomes()).items() if n > before.get(name, 0)}

    async def accounted(self):
        await self.at_rest()
        await self.eventually(self._nothing_pinned)
        assert sum((await self.new_outcomes()).values()) == await self.planned() - self.planned_before
        late = [await self.engine(worker, "vllm:nixl_num_notifications_after_expiry_total") for worker in self.prefills]
        assert late == [0.0, 0.0]

    async def _nothing_pinned(self):
        return not any([await self.engine(worker, "vllm:kv_cache_usage_perc") for worker in self.workers])

    # Breaking and repairing a worker.

    async def kill(self, *workers):
        for worker in workers:
            await asyncio.to_thread(self.fleet.kill, worker)

    async def restart(self, *workers):
        """Start new processes in place of these workers, and wait until they are ready."""
        for worker in workers:
            await asyncio.to_thread(self.fleet.restart, worker)
        assert await self.admin.until_ready([worker.id for worker in workers], 60)


@pytest.fixture(scope="module")
def handover_fleet(tmp_path_factory):
    shape = FleetShape(
        workers=4,
        time_scale=5.0,
        blocks=27_500,
        roles=("prefill", "prefill", "decode", "decode"),
        worker_flags=CONNECTOR,
        config={"handover": HANDOVER, "decisions_kept": 10_000, "residency": {"self_test": False}},
    )
    with Fleet(shape, tmp_path_factory.mktemp("handover")) as running:
        yield running


@pytest.fixture
async def site(handover_fleet, restore):
    """A new gateway has learned no speeds, so its decisions follow from the prior: any long prompt is handed over."""
    await asyncio.to_thread(handover_fleet.restart_gateway)
    site = Site(handover_fleet)
    try:
        await site.begin()
        yield site
    finally:
        await site.admin.aclose()
        await restore(handover_fleet)


# a worker dies


@pytest.mark.parametrize(
    ("step", "ends", "fields", "kinds"),
    [
        ("computing", ("prefill",), {"tokens": 8_000}, {Kind.COMPLETE}),
        ("handing", ("prefill",), {}, {Kind.COMPLETE}),
        ("handing", ("decode",), {}, {Kind.COMPLETE}),
        ("handing", ("prefill", "decode"), {}, {Kind.COMPLETE}),
        ("answering", ("decode",), STREAMED, DIED),
    ],
    ids=["prefill, in its step", "prefill, read", "decode, reads", "both", "decode, in its answer"],
)
async def test_a_worker_that_is_killed_costs_only_time_or_the_answer_that_it_has_begun(site, step, ends, fields, kinds):
    async with site.streams():
        asking, pair = await site.caught(getattr(site, step), **fields)
        victims = [pair[end] for end in ends]
        await site.kill(*victims)
        assert (await asking).kind in kinds
        await site.restart(*victims)
        await site.complete(2)
    await site.accounted()


# many long prompts


@pytest.mark.nightly
async def test_a_hundred_cold_prompts_of_16k_tokens_do_not_stall_two_decode_workers(tmp_path_factory):
    """Each worker has room for four of them. Room on a decode worker is booked at the decision."""
    shape = FleetShape(
        workers=4,
        time_scale=0.2,
        blocks=4_200,
        roles=("prefill", "prefill", "decode", "decode"),
        worker_flags=("--kv-connector", "nixl_pull"),
        config={
            "handover": {"connector": "nixl_pull", "latency_s": 0.001, "transfer_tokens_per_s": 1e9},
            "timeouts": {"first_event_s": 120},
            "decisions_kept": 10_000,
            "residency": {"self_test": False},
        },
    )
    with Fleet(shape, tmp_path_factory.mktemp("hundred")) as fleet:
        site = Site(fleet)
        await site.begin()
        asking = [asyncio.create_task(site.ask(tokens=16_000, answer=50)) for _ in range(100)]
        seen = await asyncio.gather(*asking)
        assert {one.kind for one in seen} == {Kind.COMPLETE}, seen
        served = [len([one for one in seen if one.worker == worker.id]) for worker in site.decodes]
        assert sum(served) == 100 and min(served) >= 25
        outcomes = await site.new_outcomes()
        assert outcomes.keys() == {"handed_over"} and outcomes["handed_over"] >= 50
        await site.accounted()
        await site.admin.aclose()
