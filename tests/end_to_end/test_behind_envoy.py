"""The picker behind a real Envoy: every request reaches the worker that was chosen, with the bytes that were sent."""

import asyncio
import hashlib
import json
import signal
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from loadtest.fleet.embedded import start_picker
from loadtest.fleet.envoy import FAIL_OPEN, FULL_DUPLEX, start_envoy
from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import started, until, warmroute
from tests.support.echo_worker import MODEL

ENVOY = Path(__file__).parents[2] / ".venv-envoy" / "bin" / "envoy"
CLIENTS = 150
WORKERS = 4

pytestmark = pytest.mark.skipif(not ENVOY.exists(), reason="Envoy is not installed: run `make envoy-env`")
both = pytest.mark.parametrize("file", [FULL_DUPLEX, FAIL_OPEN], ids=lambda file: file.stem)


@pytest.fixture(scope="module")
def workers():
    first = free_ports(WORKERS)
    with ExitStack() as stack:
        for port in range(first, first + WORKERS):
            started(stack, [sys.executable, "-m", "tests.support.echo_worker", str(port)], f"echo worker {port}")
        urls = [f"http://127.0.0.1:{port}" for port in range(first, first + WORKERS)]
        until(lambda: all(is_up(url) for url in urls), lambda: "an echo worker is not up", 30.0)
        yield urls


def is_up(url):
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def picker(stack, workers, *flags):
    return start_picker(stack, [*(flag for url in workers for flag in ("--worker", url)), *flags])


def ready(admin_url):
    def is_ready():
        listed = httpx.get(f"{admin_url}/admin/v1/workers").json()["workers"]
        return len(listed) == WORKERS and all(one["state"] == "ready" for one in listed)

    until(is_ready, lambda: "a worker is not ready", 30.0)


def body(number, size):
    text = f"{number}: " + "The quick brown fox jumps over the lazy dog. " * (size // 45 + 1)
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": text[:size]}]}).encode()


async def send(client, url, number, size):
    sent = body(number, size)
    answer = await client.post(f"{url}/v1/chat/completions", content=sent, headers={"content-type": "application/json"})
    if answer.status_code != 200:
        return f"status {answer.status_code}"
    told = answer.json()
    if told["digest"] != hashlib.sha256(sent).hexdigest():
        return "another body"
    return "right" if told["chosen"] == told["served_by"] else "another worker"


async def send_all(url, count, size, clients=CLIENTS):
    """Return how many requests had which outcome."""
    found, numbers = Counter(), iter(range(count))
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(timeout=60.0, limits=limits) as client:

        async def one():
            for number in numbers:
                found[await send(client, url, number, size)] += 1

        await asyncio.gather(*(one() for _ in range(clients)))
    return found


@both
def test_the_chosen_worker_gets_the_bytes_that_were_sent(workers, file):
    with ExitStack() as stack:
        _, port, admin_url = picker(stack, workers)
        ready(admin_url)
        _, url = start_envoy(stack, ENVOY, workers, [port], file=file)
        assert asyncio.run(send_all(url, 300, 2_000, 30)) == {"right": 300}
        assert asyncio.run(send_all(url, 10, 220_000, 5)) == {"right": 10}


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(600)
@both
def test_none_of_ten_thousand_requests_fails(workers, file):
    with ExitStack() as stack:
        _, port, admin_url = picker(stack, workers)
        ready(admin_url)
        _, url = start_envoy(stack, ENVOY, workers, [port], file=file)
        assert asyncio.run(send_all(url, 10_000, 2_000)) == {"right": 10_000}
        assert asyncio.run(send_all(url, 200, 220_000)) == {"right": 200}


def test_a_large_body_passes_in_full_duplex(workers):
    with ExitStack() as stack:
        _, port, admin_url = picker(stack, workers)
        ready(admin_url)
        _, url = start_envoy(stack, ENVOY, workers, [port])
        assert asyncio.run(send_all(url, 2, 6_000_000, 2)) == {"right": 2}


@pytest.mark.slow
def test_a_picker_that_learns_from_all_of_the_answer_breaks_none(workers):
    with ExitStack() as stack:
        _, port, admin_url = picker(stack, workers, "--set=picker.learn=all")
        ready(admin_url)
        _, url = start_envoy(stack, ENVOY, workers, [port], learns=True)
        assert asyncio.run(send_all(url, 2_000, 2_000)) == {"right": 2_000}
        held = [one["in_flight"] for one in httpx.get(f"{admin_url}/admin/v1/workers").json()["workers"]]
        assert held == [0] * WORKERS


def test_each_envoy_gets_the_workers_of_the_pool_whose_port_it_asks(workers):
    first = free_ports(2)
    halves = {"even": workers[::2], "odd": workers[1::2]}
    ports = dict(zip(halves, (first, first + 1), strict=True))
    listed = [{"url": url, "labels": {"pool": name}} for name, urls in halves.items() for url in urls]
    pools = {name: {"port": port, "workers": {"pool": name}} for name, port in ports.items()}
    with ExitStack() as stack:
        flags = ["--set", f"workers={json.dumps(listed)}", "--set", f"picker.pools={json.dumps(pools)}"]
        words = ["picker", "--host", "127.0.0.1", "--admin-port", "0", "--secure-serving=false", *flags]
        started(stack, warmroute(*words), "picker").wait_for("admin port")
        served = {}
        for name, port in ports.items():
            _, url = start_envoy(stack, ENVOY, workers, [port])
            until(lambda url=url: ask(url).status_code == 200, lambda: "no worker is ready", 30.0)
            served[name] = {ask(url).json()["served_by"] for _ in range(12)}
    assert served == {name: {url.partition("//")[2] for url in urls} for name, urls in halves.items()}


def ask(url):
    return httpx.post(f"{url}/v1/chat/completions", content=body(0, 100))


def test_without_a_ready_worker_the_client_gets_an_error_in_openai_s_shape(workers):
    with ExitStack() as stack:
        _, port, _ = start_picker(stack, [f"--worker=http://127.0.0.1:{free_ports(1)}", "--set=timeouts.queue_s=0"])
        _, url = start_envoy(stack, ENVOY, workers, [port])
        answer = httpx.post(f"{url}/v1/chat/completions", content=body(0, 100))
    assert answer.status_code == 503
    assert answer.json()["error"]["code"]


def test_envoy_takes_turns_while_no_picker_answers(workers):
    with ExitStack() as stack:
        process, port, admin_url = picker(stack, workers)
        ready(admin_url)
        _, url = start_envoy(stack, ENVOY, workers, [port], file=FAIL_OPEN)
        process.kill()
        answers = [httpx.post(f"{url}/v1/chat/completions", content=body(0, 100)) for _ in range(8)]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["served_by"] for answer in answers}) == WORKERS


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_answers_that_were_picked_survive_the_picker(end):
    """Streams that run when the picker ends are whole, and the next picker serves on the same port."""
    with ExitStack() as stack:
        from loadtest.fleet.embedded import start_workers

        found = start_workers(stack, [["--host", "127.0.0.1", "--port", "0"]] * 2)
        urls = [url for url, _ in found]
        port = free_ports(1)
        flags = [flag for url in urls for flag in ("--worker", url)]
        process, _, admin_url = start_picker(stack, [*flags, "--grpc-port", str(port)])
        until(lambda: httpx.get(f"{admin_url}/readyz").status_code == 200, lambda: "the picker is not ready", 30.0)
        _, url = start_envoy(stack, ENVOY, urls, [port])
        whole = asyncio.run(streams_across(process, end, url, urls[0], port, flags, stack))
    assert whole == {True: 20}


async def streams_across(process, end, url, worker_url, port, flags, stack):
    async with httpx.AsyncClient(timeout=60.0) as client:
        model = (await client.get(f"{worker_url}/v1/models")).json()["data"][0]["id"]
        fields = {"model": model, "stream": True, "max_tokens": 100, "messages": [{"role": "user", "content": "go on"}]}

        async def one():
            async with client.stream("POST", f"{url}/v1/chat/completions", json=fields) as answer:
                return [line async for line in answer.aiter_lines()][-2:-1] == ["data: [DONE]"]

        tasks = [asyncio.create_task(one()) for _ in range(20)]
        await asyncio.sleep(0.5)
        process.terminate() if end is signal.SIGTERM else process.kill()
        found = Counter(await asyncio.gather(*tasks))
        start_picker(stack, [*flags, "--grpc-port", str(port)])
        assert (await client.post(f"{url}/v1/chat/completions", json={**fields, "stream": False})).status_code == 200
    return found
