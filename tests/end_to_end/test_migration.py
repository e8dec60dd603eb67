"""Worker processes that are killed or shut down under streams: each client sees the answer of an undisturbed run."""

import asyncio
import json
import os
import signal
from contextlib import ExitStack
from time import monotonic

import httpx
import pytest

from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process, warmroute
from tests.end_to_end.conftest import ANY_PORT, Gateway

pytestmark = pytest.mark.slow

STREAMS, WORKERS, BEFORE_S = 18, 3, 2.0
PROMPT_WORDS = 500
"""Where times are measured: about two tokens a word."""
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SECRET = "SECRET-SYSTEM-PROMPT"
SETTINGS = (
    "policy: {rule: round_robin}\nroutes: [{name: default, layers: {migration: {limit: 1, drain_after_s: 0.5}}}]\n"
)
WORKER = ("--time-scale", "5", "--character-share", "0.2", "--no-kv-events")


def body(number, tokens, words=0):
    members = {"model": "warmroute-simulated", "stream": True, "max_tokens": tokens} | {
        "temperature": 0, "ignore_eos": True
    }  # fmt: skip
    rest = "".join(f" {number + place}" for place in range(words))
    asked = {
        "messages": [{"role": "system", "content": SECRET}, {"role": "user", "content": f"Question {number}{rest}"}]
    }
    asked = {"prompt": f"{SECRET} {number}{rest}"} if number % 2 else asked
    return members | asked | {"stream_options": {"include_usage": True}}


def seen(lines):
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert [line for line in lines if line == "data: [DONE]"] == ["data: [DONE]"]
    choices = [event["choices"][0] for event in events if event.get("choices")]
    text = "".join(one["text"] if "text" in one else one["delta"].get("content") or "" for one in choices)
    assert SECRET not in text and len({event["id"] for event in events}) == 1
    return text, [one["finish_reason"] for one in choices if one["finish_reason"]], events[-1]["usage"]["total_tokens"]


async def answer(client, number, tokens, words):
    async with client.stream("POST", TEXT if number % 2 else CHAT, json=body(number, tokens, words)) as reply:
        return seen([line async for line in reply.aiter_lines()])


async def answers(client, disturb=None, streams=STREAMS, tokens=150, words=0):
    asked = [asyncio.create_task(answer(client, number, tokens, words)) for number in range(streams)]
    await asyncio.sleep(BEFORE_S)
    if disturb is not None:
        await disturb()
    return await asyncio.gather(*asked)


class Fleet:
    """A gateway and its worker processes, which can be killed and started again."""

    def __init__(self, stack, folder, workers, flags=WORKER, layer=""):
        self.stack, self.flags, first_port = stack, flags, free_ports(workers)
        self.ports = [str(first_port + index) for index in range(workers)]
        self.workers = [self.started(port) for port in self.ports]
        (folder / "gateway.yaml").write_text(SETTINGS.replace("limit: 1", f"limit: 1, {layer}") if layer else SETTINGS)
        urls = [flag for port in self.ports for flag in ("--worker", f"http://127.0.0.1:{port}")]
        gateway = Process(warmroute("serve", *ANY_PORT, "--config", str(folder / "gateway.yaml"), *urls), "gateway")
        stack.callback(gateway.stop)
        self.served = Gateway(gateway)
        gateway.wait_for(rf"\bready\b.*workers_ready={workers}")

    def started(self, port):
        worker = Process(warmroute("worker", "--port", port, *self.flags), f"worker {port}")
        self.stack.callback(worker.stop)
        return worker

    def client(self):
        return httpx.AsyncClient(base_url=self.served.url, timeout=600, limits=httpx.Limits(max_connections=None))

    async def moved(self, client, trigger):
        metrics = (await client.get(f"{self.served.admin}/metrics")).text
        moved = f'warmroute_migrations_total{{outcome="resumed",trigger="{trigger}"}} '
        return float(metrics.split(moved)[1].split("\n")[0])

    async def restart_each(self, client, migrate_after_s):
        """Restart all workers in turn. Return by worker the seconds until it was empty, and until it served again."""
        times_s = []
        for number, port in enumerate(self.ports):
            began_s, admin = monotonic(), f"{self.served.admin}/admin/v1/workers/127.0.0.1:{port}"
            (await client.post(f"{admin}/drain?wait_s=300&migrate_after_s={migrate_after_s}")).raise_for_status()
            drained_s = monotonic() - began_s
            await asyncio.to_thread(self.workers[number].stop)
            self.workers[number] = self.started(port)
            (await client.post(f"{admin}/undrain?wait_s=300")).raise_for_status()
            times_s.append((drained_s, monotonic() - began_s))
        return times_s


@pytest.mark.parametrize(
    ("flags", "number", "trigger"),
    [
        ((), signal.SIGKILL, "cut"),
        ((), signal.SIGTERM, "abort"),
        (("--silent-shutdown",), signal.SIGTERM, "silence"),
    ],
)
async def test_no_stream_breaks(tmp_path, flags, number, trigger):
    with ExitStack() as stack:
        fleet = Fleet(stack, tmp_path, WORKERS, (*WORKER, *flags))

        async def kill():
            os.kill(fleet.workers[0].pid, number)

        async with fleet.client() as client:
            expected = await answers(client)
            assert await answers(client, kill) == expected
            assert await fleet.moved(client, trigger) >= 2


async def test_a_rolling_restart_breaks_no_stream(tmp_path):
    """All workers are drained, stopped and started again under answers that outlast most of it."""
    with ExitStack() as stack:
        fleet, times_s = Fleet(stack, tmp_path, WORKERS), []

        async def restart():
            times_s.extend(await fleet.restart_each(client, 1))

        async with fleet.client() as client:
            expected = await answers(client, tokens=400)
            assert await answers(client, restart, tokens=400) == expected
            assert await fleet.moved(client, "drain") >= 2
    assert all(drained_s < 20.0 for drained_s, _ in times_s), times_s


@pytest.mark.measures
@pytest.mark.nightly
async def test_a_rolling_restart_under_100_long_streams(tmp_path):
    """Prints the table of `docs/results/migration.md`: run it with `-s`."""
    streams, tokens, times_s = 100, 900, []
    with ExitStack() as stack:
        fleet = Fleet(stack, tmp_path, 4, ("--time-scale", "10", *WORKER[2:]))

        async def restart():
            times_s.extend(await fleet.restart_each(client, 10))

        async with fleet.client() as client:
            ended = await answers(client, restart, streams, tokens)
            moves = await fleet.moved(client, "drain")
    print(f"moves {moves:g}; seconds until empty, and until ready again: {times_s}")
    assert len(ended) == streams and all(finish == ["length"] for _, finish, _ in ended)
    assert all(drained_s <= 20.0 for drained_s, _ in times_s), times_s


async def first_tokens(client, until):
    """Return the times to the first token of other requests, four a second."""
    times_s, asking = [], []

    async def ask(number):
        began_s = monotonic()
        async with client.stream("POST", CHAT, json=body(number, 4, PROMPT_WORDS)) as reply:
            async for line in reply.aiter_lines():
                if '"content":"' in line and '"content":""' not in line:
                    times_s.append(monotonic() - began_s)
                    return

    while not until.is_set():
        asking.append(asyncio.create_task(ask(10_000 + 7 * len(asking))))
        await asyncio.sleep(0.25)
    await asyncio.gather(*asking)
    return sorted(times_s)


@pytest.mark.measures
@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_first_tokens_of_others_while_200_streams_lose_their_worker(tmp_path):
    """Prints the table of `docs/results/migration.md`: run it with `-s`."""
    seen_s = {}
    with ExitStack() as stack:
        fleet = Fleet(stack, tmp_path, 4, ("--time-scale", "10", *WORKER[2:]), "prefills_per_worker: 1")
        async with fleet.client() as client:
            for kills in (False, True):

                async def watch(kills=kills):
                    await asyncio.sleep(10.0)
                    if kills:
                        os.kill(fleet.workers[0].pid, signal.SIGKILL)
                    over = asyncio.Event()
                    asyncio.get_running_loop().call_later(15.0, over.set)
                    seen_s[kills] = await first_tokens(client, over)

                ended = await answers(client, watch, streams=200, tokens=300, words=PROMPT_WORDS)
                assert all(finish == ["length"] for _, finish, _ in ended)
            moves, prompt_tokens = await fleet.moved(client, "cut"), ended[0][2] - 300
    p50_s, p99_s = ([times_s[int(part * (len(times_s) - 1))] for times_s in seen_s.values()] for part in (0.5, 0.99))
    print(
        f"moves {moves:g}; prompts of {prompt_tokens} tokens; p50 {p50_s} s, p99 {p99_s} s, without and with the death"
    )
    assert p99_s[1] <= 2 * p99_s[0]
