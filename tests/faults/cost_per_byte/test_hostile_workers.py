"""Workers whose answers to the gateway's control calls never end (D5)."""

import json
import time

import httpx
import pytest

from loadtest.attack.clients import attack, request
from loadtest.attack.shapes import CHAT, Body

pytestmark = [pytest.mark.slow, pytest.mark.measures]
MB = 1_000_000
CONTROL_PATHS = ("/health", "/version", "/v1/models", "/metrics", "/kv_event_sources", "/v1/completions")


def chat(model, text):
    body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": text}]}
    return request(Body(CHAT, json.dumps(body).encode()), None)


@pytest.mark.parametrize("manner", ["endless", "trickle"])
def test_a_tokenize_that_never_ends_costs_neither_memory_nor_answers(own_ground, others, bars, manner):
    bench = own_ground.bench([own_ground.sink("hostile", None, f"--{manner}", "/tokenize"), own_ground.worker()])
    took_s = []

    def timed(number):
        took_s.append(time.monotonic())
        return chat("hostile", f"{number} " + "Why? " * 200)

    with others(bench.address) as beside:
        row = bench.row(
            f"/tokenize {manner}",
            lambda: attack(bench.address, timed, 20, 6.0),
            0,
            bars(spare_bytes=64 * MB),
        )
    assert set(row.sent.statuses) == {"200"}, row
    assert row.wall_s < 20, row
    assert not beside.failed and max(beside.took_s) < 5, (beside.failed, max(beside.took_s))


@pytest.mark.parametrize("manner", ["endless", "trickle"])
def test_control_answers_that_never_end_cost_no_memory_and_no_other_workers(own_ground, others, bars, manner):
    bench = own_ground.bench([own_ground.worker()])
    urls = [own_ground.sink("hostile", None, f"--{manner}", path) for path in CONTROL_PATHS]

    def join():
        for url in urls:
            httpx.post(bench.admin_url + "/admin/v1/workers", json={"url": url}, timeout=20).raise_for_status()
        time.sleep(8.0)
        for url in urls:
            worker_id = url.removeprefix("http://")
            httpx.delete(f"{bench.admin_url}/admin/v1/workers/{worker_id}", timeout=20).raise_for_status()

    with others(bench.address) as beside:
        bench.row(f"control paths {manner}", join, 0, bars(spare_bytes=64 * MB))
    assert not beside.failed and max(beside.took_s) < 5, (beside.failed, max(beside.took_s))
