import httpx
import pytest

pytestmark = pytest.mark.any_version

PROMPT = "Somebody else talks to this worker, too, and nobody has told the gateway about that. " * 20


def direct(server, gateway, path, body):
    answer = httpx.post(
        f"{server.url}{path}", json={"model": gateway.model, "max_tokens": 20, "ignore_eos": True, **body}, timeout=60
    )
    assert answer.status_code == 200, answer.text
    gateway.settle()
    return answer.json()


def test_blocks_of_other_clients_are_found(plain, talk):
    for number in range(5):
        text = f"{number} {PROMPT}"
        direct(plain, talk, "/v1/chat/completions", {"messages": [{"role": "user", "content": text}]})
        assert talk.chat(text).reported > 200
        direct(plain, talk, "/v1/completions", {"prompt": text, "cache_salt": "theirs"})
        assert talk.complete(text).reported == 0
        assert talk.complete(text, cache_salt="theirs").reported > 200
    talk.exact(15)


def test_a_conversation_past_and_through_the_gateway_is_predicted(plain, talk):
    messages = []
    for turn in range(4):
        messages.append({"role": "user", "content": f"{turn} {PROMPT[:300]}"})
        answer = direct(plain, talk, "/v1/chat/completions", {"messages": messages})
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        talk.turn(messages, f"{turn} and {PROMPT[:300]}", max_tokens=21)
    talk.exact(4)
