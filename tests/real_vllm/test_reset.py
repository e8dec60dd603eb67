import threading

import httpx
import pytest

pytestmark = pytest.mark.any_version

PROMPT = "What was known is forgotten when somebody says so, and learned anew from then on. " * 20


def step(server, talk):
    """Run one step of the engine without the gateway. An idle engine publishes only with its next step."""
    body = {"model": talk.model, "prompt": "step", "max_tokens": 1}
    httpx.post(f"{server.url}/v1/completions", json=body).raise_for_status()
    talk.settle()


def test_a_reset_clears_the_view(plain, talk):
    for round_ in range(3):
        assert talk.chat(PROMPT).reported == 0
        for number in range(3):
            assert talk.chat(PROMPT + f"{round_} {number}").reported > 200
        plain.reset_prefix_cache()
        step(plain, talk)
        (candidate,) = talk.candidates()
        assert candidate["residency"] == "exact"
    talk.exact(12)


def test_the_first_request_after_an_unseen_reset_shows_it(plain, talk):
    """The gateway learns of the empty cache only at the engine's next step, which publishes the reset."""
    talk.chat(PROMPT)
    plain.reset_prefix_cache()
    unseen = talk.send("/v1/completions", {"model": talk.model, "prompt": PROMPT, "max_tokens": 1})
    assert unseen.reported == 0
    talk.settle()
    for number in range(5):
        assert (talk.chat(PROMPT + str(number)).reported > 200) == bool(number)
    assert talk.residency() == "exact"
    talk.exact(6)


def test_reset_while_a_request_runs(plain, talk):
    """vLLM does not empty a cache in use. Predictions stay right in either case."""
    talk.chat(PROMPT)
    body = {"model": talk.model, "prompt": "Once", "max_tokens": 3_000, "ignore_eos": True, "stream": True}
    with talk.client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        httpx.post(f"{plain.url}/reset_prefix_cache", timeout=10)
        running = talk.send("/v1/completions", {"model": talk.model, "prompt": PROMPT, "max_tokens": 1})
        assert running.predicted == running.reported
    talk.settle()
    for number in range(4):
        talk.chat(PROMPT + str(number))
    talk.exact(5)


def test_many_resets_behind_the_gateway(plain, talk):
    """Another client resets again and again; each comparison is made after a step, so all agree."""
    stop = threading.Event()
    resets = []

    def reset():
        with httpx.Client(base_url=plain.url) as client:
            while not stop.wait(0.02):
                resets.append(client.post("/reset_prefix_cache").status_code)

    thread = threading.Thread(target=reset)
    thread.start()
    try:
        for number in range(10):
            talk.send("/v1/completions", {"model": talk.model, "prompt": PROMPT + str(number % 3), "max_tokens": 4})
    finally:
        stop.set()
        thread.join()
    assert resets and set(resets) == {200}
    step(plain, talk)
    for number in range(6):
        talk.chat(PROMPT + str(number % 2))
    assert talk.residency() == "exact"
    talk.exact(6)


OPERATE = ("--set", 'worker_operations=["pause", "resume", "reset-prefix-cache", "load-lora", "unload-lora"]')


def operate(gateway, operation, worker):
    return gateway.admin.post("/admin/v1/worker-operations", json={"operation": operation, "workers": [worker]})


def test_the_gateway_resets_a_cache_and_its_view_follows(plain, front):
    gateway = front(plain, flags=OPERATE)
    worker = gateway.workers()[0]["id"]
    for _ in range(2):
        gateway.chat(PROMPT)
    answer = operate(gateway, "reset-prefix-cache", worker)
    assert (answer.status_code, answer.json()["results"][0]["outcome"]) == (200, "done")
    step(plain, gateway)
    assert gateway.chat(PROMPT).reported == 0
    assert gateway.chat(PROMPT).reported > 200
    gateway.exact(4)


def test_the_gateway_pauses_and_resumes_a_server(plain, front):
    gateway = front(plain, flags=OPERATE)
    worker = gateway.workers()[0]["id"]
    assert operate(gateway, "pause", worker).status_code == 200
    assert httpx.get(f"{plain.url}/is_paused").json() == {"is_paused": True}
    assert gateway.workers()[0]["state"] == "draining"
    assert operate(gateway, "resume", worker).status_code == 200
    assert httpx.get(f"{plain.url}/is_paused").json() == {"is_paused": False}
    assert gateway.chat(PROMPT).reported is not None
