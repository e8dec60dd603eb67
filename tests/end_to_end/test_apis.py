"""Messages and Responses requests through a whole fleet are placed by prefix and predicted correctly, streamed or
not.
"""

import json
from itertools import pairwise

import httpx
import pytest

TURN = "Please look at this function and say what is wrong with it, and why that is so. " * 6


def messages(texts):
    turns = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    return {"max_tokens": 8, "system": [{"type": "text", "text": TURN}], "messages": turns}


def responses(texts):
    parts = ("input_text", "output_text")
    items = [
        {"type": "message", "role": ("user", "assistant")[n % 2], "content": [{"type": parts[n % 2], "text": text}]}
        for n, text in enumerate(texts)
    ]
    return {"max_output_tokens": 8, "instructions": TURN, "input": items}


def usage_of(told):
    usage = told.get("usage") or told.get("response", {}).get("usage")
    if usage is None:
        return None
    details = usage.get("input_tokens_details") or {}
    return usage.get("cache_read_input_tokens", details.get("cached_tokens"))


def ask(system, path, body, *, stream):
    """Return the predicted and the reported cached tokens, the text of the answer, and the worker that answered."""
    reply = httpx.post(f"{system.url}{path}", json={"model": system.model, **body, "stream": stream}, timeout=30)
    assert reply.status_code == 200, reply.text
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]
    told = events if stream else [reply.json()]
    reported = [cached for event in told if (cached := usage_of(event)) is not None][-1]
    deltas = [event.get("delta") for event in events]
    text = "".join(delta if isinstance(delta, str) else (delta or {}).get("text", "") for delta in deltas)
    if not stream:
        whole = reply.json()
        text = (whole.get("content") or whole["output"][0]["content"])[0]["text"]
    system.wait_idle()
    predicted = int(reply.headers["x-warmroute-predicted-cached-tokens"])
    return predicted, reported, text, reply.headers["x-warmroute-worker"]


@pytest.fixture(scope="module")
def three(start_shared):
    return start_shared(workers=3)


@pytest.mark.parametrize(("path", "body"), [("/v1/messages", messages), ("/v1/responses", responses)])
def test_a_conversation_is_placed_by_prefix_and_predicted_to_the_block(three, path, body):
    system = three
    texts, seen = [], []
    for turn in range(6):
        texts.append(f"{turn} {TURN}")
        predicted, reported, text, worker = ask(system, path, body(texts), stream=bool(turn % 2))
        assert predicted == reported
        seen.append((reported, worker))
        texts.append(text)
    decisions = system.admin.get("/admin/v1/decisions?limit=6").json()["decisions"]
    assert {decision["reported_cached_tokens"] for decision in decisions} == {reported for reported, _ in seen}
    assert len({worker for _, worker in seen}) == 1
    assert all(later > sooner for (sooner, _), (later, _) in pairwise(seen))


def test_the_apis_share_one_cache(start):
    system = start(workers=2)
    first = ask(system, "/v1/messages", messages([TURN]), stream=False)
    second = ask(system, "/v1/responses", responses([TURN]), stream=True)
    chat = {"messages": [{"role": "system", "content": TURN}, {"role": "user", "content": TURN}], "max_tokens": 4}
    third = httpx.post(f"{system.url}/v1/chat/completions", json={"model": system.model, **chat}, timeout=30)
    assert first[1] == 0 and second[0] == second[1] > 100
    details = third.json()["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] == int(third.headers["x-warmroute-predicted-cached-tokens"]) == second[1]
