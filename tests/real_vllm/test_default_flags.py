"""Servers with vLLM's default flags report little about their cache, so their views are approximate."""

import threading

import httpx
import pytest

DEFAULTS = ("--no-enable-prompt-tokens-details",)
PROMPT = "Every prompt is read before the first word of its answer, and some of it is known from before. " * 10


@pytest.fixture
def traffic():
    """Return a function that keeps a server busy for the rest of the test."""
    over = threading.Event()
    clients = []

    def begin(server, clients_at_once=8):
        model = httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"]

        def ask(number):
            turn = 0
            while not over.is_set():
                turn += 1
                body = {"model": model, "prompt": f"{number} {turn} {PROMPT}", "max_tokens": 4, "ignore_eos": True}
                httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)

        clients.extend(threading.Thread(target=ask, args=(number,)) for number in range(clients_at_once))
        for client in clients:
            client.start()

    yield begin
    over.set()
    for client in clients:
        client.join()


def verdict(gateway):
    (candidate,) = gateway.candidates()
    return candidate["residency"], candidate["self_test"]["reason"]


def test_a_quiet_default_server_is_counted(vllm, front):
    residency, reason = verdict(front(vllm(*DEFAULTS, kv_events=False)))
    assert residency == "approximate" and "nothing corrects the view" in reason


def test_a_busy_default_server_is_approximate(vllm, front, traffic):
    server = vllm(*DEFAULTS, kv_events=False)
    traffic(server)
    residency, _ = verdict(front(server))  # other requests may come between the two by chance
    assert residency == "approximate"


@pytest.mark.nightly
def test_a_server_without_statistics_is_approximate(vllm, front):
    residency, reason = verdict(front(vllm(*DEFAULTS, "--disable-log-stats", kv_events=False)))
    assert residency == "approximate" and "its hit counter cannot be read" in reason
