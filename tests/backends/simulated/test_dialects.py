"""/v1/messages and /v1/responses of the embedded worker: shapes, usage and order of events as in vLLM."""

import json

import openai
import pytest

MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
LONG = "Please look at this function and say what is wrong with it. " * 8


def events(text):
    pairs = [event.partition("\n") for event in text.split("\n\n") if event]
    parsed = [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, _, data in pairs]
    assert all(name == data["type"] for name, data in parsed)
    return parsed


def messages(*texts, **fields):
    turns = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    return {"model": "warmroute-simulated", "max_tokens": 6, "messages": turns, **fields}


async def test_a_repeated_message_reads_its_blocks_from_the_cache(client):
    body = messages(LONG, system="S", cache_salt="a")
    answer = (await client.post(MESSAGES, json=body)).json()
    assert (answer["type"], answer["role"], answer["stop_reason"]) == ("message", "assistant", "max_tokens")
    assert answer["content"][0]["type"] == "text" and answer["content"][0]["text"]
    usage = answer["usage"]
    prompt = usage["input_tokens"] + usage["cache_creation_input_tokens"]
    assert (usage["cache_read_input_tokens"], usage["output_tokens"]) == (0, 6)
    assert usage["cache_creation_input_tokens"] == prompt // 16 * 16 > 96
    usage = (await client.post(MESSAGES, json=body)).json()["usage"]
    assert usage["cache_read_input_tokens"] == (prompt - 1) // 16 * 16
    assert sum(usage.values()) == prompt + 6
    other = (await client.post(MESSAGES, json={**body, "cache_salt": "b"})).json()
    assert other["usage"]["cache_read_input_tokens"] == 0


async def test_a_messages_stream_has_vllms_events(client):
    whole = (await client.post(MESSAGES, json=messages(LONG))).json()
    answer = await client.post(MESSAGES, json=messages(LONG, stream=True))
    parsed = events(answer.text)
    assert [name for name, _ in parsed] == [
        "message_start", "content_block_start", *["content_block_delta"] * 6, "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip
    start = parsed[0][1]["message"]
    assert start["content"] == [] and "cache_read_input_tokens" not in start["usage"]
    delta, usage = parsed[-2][1]["delta"], parsed[-2][1]["usage"]
    assert delta == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert usage["cache_read_input_tokens"] >= whole["usage"]["cache_creation_input_tokens"] - 16 > 80
    assert start["usage"]["input_tokens"] == sum(usage.values()) - 6


async def test_a_response_and_its_stream_have_openais_shape(client, openai_client):
    model = "warmroute-simulated"
    made = await openai_client.responses.create(model=model, input=LONG, instructions="S", max_output_tokens=5)
    assert made.id.startswith("resp_") and made.status == "incomplete" and made.output_text
    assert (made.usage.output_tokens, made.usage.input_tokens_details.cached_tokens) == (5, 0)
    turns = [{"role": "user", "content": LONG}, *[item.model_dump() for item in made.output]]
    turns += [{"role": "user", "content": "more"}]
    stream = await openai_client.responses.create(
        model=model, input=turns, instructions="S", max_output_tokens=5, stream=True
    )
    kinds = [event.type async for event in stream]
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        *["response.output_text.delta"] * 5, "response.output_item.done", "response.incomplete",
    ]  # fmt: skip
    again = await openai_client.responses.create(model=model, input=turns, instructions="S", max_output_tokens=5)
    assert again.usage.input_tokens_details.cached_tokens == (again.usage.input_tokens - 1) // 16 * 16


async def test_a_responses_stream_announces_itself_before_prefill(worker_with):
    async with (
        worker_with(time_scale=1000.0) as client,
        client.stream("POST", RESPONSES, json={"input": "x", "stream": True}) as answer,
    ):
        async for piece in answer.aiter_text():
            assert [name for name, _ in events(piece)] == ["response.created", "response.in_progress"]
            break
    assert client.engine()["running"] + client.engine()["waiting"] <= 1


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        (MESSAGES, {"messages": [{"role": "user", "content": "a"}]}, 400, "BadRequestError"),
        (MESSAGES, {"messages": [], "max_tokens": 4}, 400, "BadRequestError"),
        (MESSAGES, messages("a", model="other"), 404, "NotFoundError"),
        (MESSAGES, messages([{"type": "image", "source": {"data": "x"}}]), 400, "BadRequestError"),
        (RESPONSES, {"input": "a", "model": "other"}, 404, "NotFoundError"),
        (RESPONSES, {"input": 5}, 400, "BadRequestError"),
        (RESPONSES, {"input": "a", "previous_response_id": "resp_1"}, 400, "BadRequestError"),
        (RESPONSES, {"input": "a", "background": True}, 400, "BadRequestError"),
    ],
)
async def test_an_unsupported_body_is_refused(client, path, body, status, kind):
    answer = await client.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)


async def test_a_chat_with_a_template_or_truncation_is_refused(client):
    for fields in ({"chat_template": "{{ 1 }}"}, {"truncate_prompt_tokens": 5}):
        answer = await client.chat("a", **fields)
        assert answer["error"]["param"] in fields


async def test_a_client_that_disconnects_frees_the_engine(worker_with, until):
    async with worker_with(time_scale=5.0) as client:
        with pytest.raises(openai.APITimeoutError):
            async with openai.AsyncOpenAI(base_url=f"{client.running.url}/v1", api_key="x", max_retries=0) as api:
                await api.responses.create(model="warmroute-simulated", input="x" * 900, timeout=0.2)
        await until(lambda: client.worker.statistics()["in_flight"] == 0)
