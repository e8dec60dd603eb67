"""Limits as OpenAI's own client meets them, and as four processes keep them together."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

pytestmark = pytest.mark.slow

MESSAGES = [{"role": "user", "content": "Name three prime numbers."}]


def with_limits(**default):
    return ("--set", f"limits.tenants={json.dumps({'default': default})}")


def account(system):
    (shown,) = system.admin.get("/admin/v1/limits").json()["accounts"]
    return shown


def client(system, **options):
    return openai.OpenAI(base_url=f"{system.url}/v1", api_key="unused", **options)


def test_openais_client_reads_the_limits_and_waits_as_asked(start):
    system = start(
        workers=1, serve_flags=with_limits(requests_per_minute=60, burst_requests=2, tokens_per_minute=9_000)
    )
    ask = {"model": system.model, "messages": MESSAGES, "max_tokens": 4}
    plain = client(system, max_retries=0)
    answer = plain.chat.completions.with_raw_response.create(**ask)
    assert answer.headers["x-ratelimit-limit-requests"] == "60"
    assert answer.headers["x-ratelimit-remaining-requests"] == "1"
    assert answer.headers["x-ratelimit-limit-tokens"] == "9000"
    plain.chat.completions.create(**ask)
    with pytest.raises(openai.RateLimitError) as refused:
        [plain.chat.completions.create(**ask) for _ in range(3)]
    assert refused.value.code == "requests_per_minute_exceeded"
    assert refused.value.response.headers["retry-after"] == "1"
    started_s = time.monotonic()
    assert client(system, max_retries=2).chat.completions.create(**ask).usage.completion_tokens == 4
    assert time.monotonic() - started_s < 10.0
    assert system.metric("warmroute_limit_refusals_total") >= 1
    assert system.metric("warmroute_limit_used_tokens_total") > 0
    system.wait_for(lambda: account(system)["running_requests"] == 0)


def test_a_limit_of_60_is_60_for_four_processes(start):
    system = start(workers=1, serve_flags=("--processes", "4", *with_limits(requests_per_minute=60)))
    system.wait_for(lambda: ready(system) == 4, limit_s=60.0, what="four processes")
    body = {"model": system.model, "messages": MESSAGES, "max_tokens": 1}
    clients = [httpx.Client(base_url=system.url, timeout=30) for _ in range(16)]
    started_s = time.monotonic()
    with ThreadPoolExecutor(16) as threads:
        waves = [list(threads.map(lambda each: ask(each, body), clients)) for _ in range(8)]
    took_s = time.monotonic() - started_s
    statuses = [status for wave in waves for status in wave]
    assert 60 <= statuses.count(200) <= 60 + took_s + 1
    assert statuses.count(200) + statuses.count(429) == 128
    deciding = system.admin.get("/admin/v1/decisions?limit=100").json()["decisions"]
    assert len({decision["process"] for decision in deciding}) == 4
    assert account(system)["requests"]["remaining"] < 5


def ready(system):
    answer = system.admin.get("/readyz")
    return answer.json()["processes_ready"] if answer.status_code == 200 else 0


def ask(client, body):
    return client.post("/v1/chat/completions", json=body).status_code
