"""What OpenAI's package sees of a stream whose worker dies."""

import json

import openai
import pytest

from tests.router.gateway.layers.migration.test_migration import ANSWER, ROUTES
from tests.support.answers import STREAM, chunk, dying
from tests.support.token_worker import DEATHS, PROMPT, TokenWorker

ASKED = {"model": "m", "max_tokens": 500, "stream": True}
CREATED = {"type": "response.created", "sequence_number": 0, "response": {"id": "resp_1", "object": "response"}}
DELTA = {"type": "response.output_text.delta", "sequence_number": 1, "item_id": "i", "output_index": 0} | {
    "content_index": 0, "delta": "Hel", "logprobs": []
}  # fmt: skip


def package(gate):
    return openai.AsyncOpenAI(base_url=f"http://{gate.address}/v1", api_key="unused", max_retries=0, timeout=20)


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_the_package_sees_one_stream(rig, api, death):
    gate = await rig(TokenWorker(ANSWER, 9, death), TokenWorker(ANSWER, name="other"), routes=ROUTES)
    options = {"include_usage": True}
    async with package(gate) as client:
        if api == "chat":
            messages = [{"role": "user", "content": "x"}]
            stream = await client.chat.completions.create(**ASKED, messages=messages, stream_options=options)
        else:
            stream = await client.completions.create(**ASKED, prompt="x", stream_options=options)
        events = [event async for event in stream]
    choices = [event.choices[0] for event in events if event.choices]
    assert "".join((one.delta.content if api == "chat" else one.text) or "" for one in choices) == ANSWER
    assert {(event.id, event.created, event.model) for event in events} == {("cmpl-w", 1, "m")}
    assert [one.finish_reason for one in choices if one.finish_reason] == ["stop"]
    (usage,) = [event.usage for event in events if event.usage]
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(PROMPT), len(ANSWER.encode()))


async def test_the_package_raises_where_a_stream_of_responses_breaks(rig):
    events = [b"event: %b\ndata: %b\n\n" % (one["type"].encode(), json.dumps(one).encode()) for one in (CREATED, DELTA)]
    gate = await rig(dying(STREAM, *map(chunk, events)), TokenWorker(ANSWER), routes=ROUTES)
    seen = []
    async with package(gate) as client:
        events = await client.responses.create(model="m", input="x", stream=True)
        with pytest.raises(openai.APIError, match="broke off"):  # noqa: PT012
            async for event in events:
                seen.append(event.type)  # noqa: PERF401
    assert seen[:2] == ["response.created", "response.output_text.delta"] and "response.completed" not in seen
    assert gate.workers[1].requests == []
