"""The answer of a server about a model that it does not serve. Only this answer makes the gateway try another
worker.
"""

import httpx
import pytest

MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}),
        ("/v1/completions", {"prompt": "Hello"}),
        ("/v1/responses", {"input": "Hello"}),
    ],
)
def test_the_404_of_an_unknown_model_names_the_parameter(plain, path, body):
    answer = httpx.post(f"{plain.url}{path}", json={"model": "nonsense", **body}, timeout=60)
    assert answer.status_code == 404, answer.text
    assert answer.json()["error"]["param"] == "model"


def test_another_404_names_no_parameter(plain, talk):
    body = {"model": talk.model, "input": "Hello", "previous_response_id": "resp_nonsense"}
    answer = httpx.post(f"{plain.url}/v1/responses", json=body, timeout=60)
    assert answer.status_code == 404, answer.text
    assert (answer.json().get("error") or {}).get("param") != "model"


def test_the_404_of_messages_names_no_parameter(plain):
    """Therefore the gateway does not try another worker for `/v1/messages`."""
    body = {"model": "nonsense", "max_tokens": 4, "messages": MESSAGES}
    answer = httpx.post(f"{plain.url}/v1/messages", json=body, timeout=60)
    assert answer.status_code == 404, answer.text
    assert "param" not in answer.json()["error"]
