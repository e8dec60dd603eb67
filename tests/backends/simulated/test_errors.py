import asyncio

import pytest
import pytest_asyncio

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HI = [{"role": "user", "content": "Hi"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(worker_with):
    """One worker for all tests of the module, because no request reaches its engine."""
    async with worker_with() as client:
        yield client


def error_of(answer, status):
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {}, None),
        (CHAT, {"messages": HI, "n": 2}, "n"),
        (CHAT, {"messages": HI, "max_tokens": 0}, "max_tokens"),
        (CHAT, {"messages": HI, "max_tokens": "many"}, "max_tokens"),
        (CHAT, {"messages": HI, "max_tokens": 10_000_000}, "max_tokens"),
        (CHAT, {"messages": HI, "logprobs": True}, "logprobs"),
        (CHAT, {"messages": HI, "response_format": {"type": "json_object"}}, "response_format"),
        (CHAT, {"messages": HI, "stream_options": {"include_usage": True}}, "stream_options"),
        (CHAT, {"messages": HI, "cache_salt": "a/b"}, "cache_salt"),
        (CHAT, {"messages": HI, "cache_salt": ""}, "cache_salt"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages"),
        (COMPLETIONS, {"prompt": "a", "echo": True}, "echo"),
        (COMPLETIONS, {"prompt": "a", "best_of": 2}, "best_of"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": ""}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", 1]}, "prompt"),
        (COMPLETIONS, {"prompt": [-1]}, "prompt"),
        (COMPLETIONS, {"prompt": [1, 8_000_000]}, "prompt"),
        (COMPLETIONS, {"prompt": [[1], ["a"]]}, "prompt"),
        (COMPLETIONS, {"prompt": 3}, "prompt"),
        (COMPLETIONS, {"prompt": [1] * 131_072}, "prompt"),
    ],
)
async def test_an_invalid_field_is_refused(client, path, body, param):
    error = error_of(await client.post(path, json=body), 400)
    assert error["type"] == "BadRequestError"
    assert error["param"] == param
    assert client.worker.statistics()["in_flight"] == 0


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize"])
@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"\xff"])
async def test_a_body_that_is_not_an_object_is_refused(client, path, raw):
    error_of(await client.post(path, content=raw, headers={"content-type": "application/json"}), 400)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
async def test_content_type_must_be_json(client, path):
    error_of(await client.post(path, content=b"{}", headers={"content-type": "text/plain"}), 415)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": HI}),
        (COMPLETIONS, {"prompt": "a"}),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [1]}),
    ],
)
async def test_an_unknown_model_is_a_404(client, path, body):
    error = error_of(await client.post(path, json={**body, "model": "nobody"}), 404)
    assert (error["type"], error["param"]) == ("NotFoundError", "model")


async def test_an_unknown_path_or_method_is_refused(client):
    error_of(await client.get("/v1/nothing"), 404)
    error_of(await client.get(CHAT), 405)
    error_of(await client.post("/sleep"), 404)


async def test_a_prompt_longer_than_the_model_is_refused(worker_with):
    async with worker_with(max_model_len=100) as client:
        error = error_of(await client.post(COMPLETIONS, json={"prompt": [7] * 100}), 400)
        assert "100" in error["message"]
        fits = await client.post(COMPLETIONS, json={"prompt": [7] * 99})
        assert fits.json()["usage"]["completion_tokens"] == 1


async def test_model_length_follows_a_small_cache(worker_with):
    async with worker_with(num_blocks=11) as client:
        (card,) = (await client.get("/v1/models")).json()["data"]
        assert card["max_model_len"] == 160
        assert (await client.post(COMPLETIONS, json={"prompt": [7] * 100, "max_tokens": 60})).status_code == 200


async def test_too_many_requests_in_flight_are_refused(worker_with, until):
    async with worker_with(max_num_queued_reqs=2, time_scale=1.0) as client:
        body = {"prompt": "a", "max_tokens": 1000}
        running = asyncio.create_task(client.post(COMPLETIONS, json={**body, "prompt": ["a", "b"]}))
        await until(lambda: client.worker.statistics()["in_flight"] == 2)
        error = error_of(await client.post(COMPLETIONS, json={**body, "stream": True}), 503)
        assert "2" in error["message"]
        assert client.worker.statistics()["metrics"]["rejected"] == 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
