import asyncio

import openai
import pytest

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MODEL = "warmroute-simulated"
LONG = "Explain in detail how the following function works and what could go wrong with it. " * 12


async def test_a_chat_has_openais_shape(openai_client):
    answer = await openai_client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=7
    )
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "length", "assistant")
    assert len(choice.message.content.split()) == 7
    usage = answer.usage
    assert usage.completion_tokens == 7
    assert usage.total_tokens == usage.prompt_tokens + 7
    assert usage.prompt_tokens_details.cached_tokens == 0


async def test_a_chat_stream_has_openais_frames(openai_client):
    stream = await openai_client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hello"}],
        max_completion_tokens=5,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    chunks = [chunk async for chunk in stream]
    assert len(chunks) == 7
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert [bool(chunk.choices[0].delta.content) for chunk in chunks[1:6]] == [True] * 5
    assert [chunk.choices[0].finish_reason for chunk in chunks[:6]] == [None] * 5 + ["length"]
    assert chunks[6].choices == []
    assert chunks[6].usage.completion_tokens == 5
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_stream_has_no_usage_unless_requested(client):
    frames = await client.frames(CHAT, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2})
    assert len(frames) == 3
    assert all(frame["choices"] and "usage" not in frame for frame in frames)


async def test_a_completion_has_openais_shape(openai_client):
    answer = await openai_client.completions.create(model=MODEL, prompt="import os", max_tokens=4)
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    assert len(answer.choices[0].text.split()) == 4
    assert answer.choices[0].text.startswith(" ")


async def test_completion_length_defaults(client):
    completion = (await client.post(COMPLETIONS, json={"prompt": "a"})).json()
    assert completion["usage"]["completion_tokens"] == 16
    assert (await client.chat("a"))["usage"]["completion_tokens"] == 128


async def test_a_completion_stream_has_openais_frames(openai_client):
    stream = await openai_client.completions.create(model=MODEL, prompt="import os", max_tokens=4, stream=True)
    chunks = [chunk async for chunk in stream]
    assert len(chunks) == 4
    assert all(chunk.choices[0].text for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"


async def test_several_prompts_are_answered_in_order(openai_client):
    answer = await openai_client.completions.create(model=MODEL, prompt=["one", "two", "three"], max_tokens=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.completion_tokens == 9
    stream = await openai_client.completions.create(
        model=MODEL, prompt=["one", "two"], max_tokens=3, stream=True, stream_options={"include_usage": True}
    )
    seen = {0: 0, 1: 0}
    async for chunk in stream:
        for choice in chunk.choices:
            seen[choice.index] += 1
    assert seen == {0: 3, 1: 3}


@pytest.mark.parametrize("prompt", [[5, 6, 7], [[5, 6, 7]]])
async def test_a_prompt_may_be_token_ids(client, prompt):
    body = {"prompt": prompt, "max_tokens": 2, "return_token_ids": True}
    answer = (await client.post(COMPLETIONS, json=body)).json()
    (choice,) = answer["choices"]
    assert choice["prompt_token_ids"] == [5, 6, 7]
    assert len(choice["token_ids"]) == 2
    detokenized = (await client.post("/detokenize", json={"tokens": choice["token_ids"]})).json()
    assert detokenized["prompt"] == choice["text"]


async def test_streamed_text_and_ids_agree(client):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 30, "return_token_ids": True}
    frames = await client.frames(CHAT, body)
    ids = [id_ for frame in frames[1:] for id_ in frame["choices"][0]["token_ids"]]
    text = "".join(frame["choices"][0]["delta"]["content"] for frame in frames)
    assert len(ids) == 30
    assert (await client.post("/detokenize", json={"tokens": ids})).json()["prompt"] == text
    tokenized = (await client.post("/tokenize", json={"messages": body["messages"]})).json()
    assert frames[0]["prompt_token_ids"] == tokenized["tokens"]


async def test_cached_tokens_across_turns(client):
    """The second turn repeats the first turn's prompt and answer: all their full blocks are hits."""
    messages = [{"role": "system", "content": LONG}, {"role": "user", "content": "Begin."}]
    for _turn in range(3):
        first = (await client.post(CHAT, json={"messages": messages, "max_tokens": 50})).json()
        messages.append({"role": "assistant", "content": first["choices"][0]["message"]["content"]})
        messages.append({"role": "user", "content": "Go on."})
        second = (await client.post(CHAT, json={"messages": messages, "max_tokens": 1})).json()
        # The last generated token was never an input, so its key and value were not computed.
        known = first["usage"]["total_tokens"] - 1
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == known // 16 * 16


async def test_salt_and_adapter_split_the_cache(worker_with):
    async with worker_with(lora_adapters=("style",)) as client:
        ids = list(range(300, 365))
        variants = [{}, {"cache_salt": "a"}, {"model": "style"}, {"model": "style", "cache_salt": "a"}]
        for expected in (0, 64):
            for variant in variants:
                answer = (await client.post(COMPLETIONS, json={"prompt": ids, "max_tokens": 1, **variant})).json()
                assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == expected


async def test_details_can_be_left_out(worker_with):
    async with worker_with(prompt_tokens_details=False) as client:
        assert (await client.chat("Hi", max_tokens=1))["usage"]["prompt_tokens_details"] is None


async def test_several_prompts_report_cached_tokens_of_the_last(client):
    known, new = list(range(300, 365)), list(range(500, 565))
    await client.post(COMPLETIONS, json={"prompt": known, "max_tokens": 1})
    for prompts, expected in (([new, known], 64), ([known, list(range(700, 765))], 0)):
        answer = (await client.post(COMPLETIONS, json={"prompt": prompts, "max_tokens": 1})).json()
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == expected


async def test_request_ids_are_echoed(worker_with):
    async with worker_with(request_id_headers=True) as client:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        answer = await client.post(CHAT, json=body, headers={"X-Request-Id": "abc"})
        assert answer.json()["id"] == "chatcmpl-abc"
        assert answer.headers["x-request-id"] == "abc"
        frames = await client.frames(COMPLETIONS, {"prompt": "a"}, headers={"X-Request-Id": "abc"})
        assert {frame["id"] for frame in frames} == {"cmpl-abc"}
        # Two concurrent requests with one id do not collide.
        answers = await asyncio.gather(*(client.post(CHAT, json={**body, "request_id": "same"}) for _ in range(2)))
        assert [answer.json()["id"] for answer in answers] == ["chatcmpl-same"] * 2


async def test_no_request_id_header_by_default(client):
    answer = await client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1}, headers={"X-Request-Id": "abc"})
    assert "x-request-id" not in answer.headers


async def test_the_model_stops_by_itself_unless_ignore_eos(worker_with):
    async with worker_with(stop_probability=0.2) as client:
        stopped = [await client.chat("Hi", max_tokens=400) for _ in range(5)]
        assert {answer["choices"][0]["finish_reason"] for answer in stopped} == {"stop"}
        assert len({answer["usage"]["completion_tokens"] for answer in stopped}) > 1
        ignored = await client.chat("Hi", max_tokens=100, ignore_eos=True)
        assert (ignored["usage"]["completion_tokens"], ignored["choices"][0]["finish_reason"]) == (100, "length")


async def test_headers_leave_before_the_first_token(worker_with):
    async with worker_with(time_scale=1.0, speed=0.02) as client:
        body = {"prompt": list(range(300, 400)), "max_tokens": 1, "stream": True}
        async with client.stream("POST", COMPLETIONS, json=body) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert client.worker.statistics()["in_flight"] == 1
            assert client.worker.statistics()["clock"]["steps"] == 0
            assert b"[DONE]" in await answer.aread()


async def test_openai_client_sees_typed_errors(openai_client):
    with pytest.raises(openai.NotFoundError) as missing:
        await openai_client.chat.completions.create(model="other", messages=[{"role": "user", "content": "x"}])
    assert missing.value.body["param"] == "model"
    with pytest.raises(openai.BadRequestError):
        await openai_client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}], n=2)
    assert [card.id async for card in openai_client.models.list()] == [MODEL]
