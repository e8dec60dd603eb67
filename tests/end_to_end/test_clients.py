import json
import shutil
import subprocess

import openai
import pytest

pytestmark = pytest.mark.slow

MESSAGES = [{"role": "user", "content": "Name three prime numbers."}]


@pytest.fixture(scope="module")
def system(start_shared):
    return start_shared(workers=2)


@pytest.fixture
def client(system):
    return openai.OpenAI(base_url=f"{system.url}/v1", api_key="unused", max_retries=0)


def test_openai_chat_plain_and_streamed(system, client):
    whole = client.chat.completions.create(model=system.model, messages=MESSAGES, max_tokens=12)
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 12
    options = {"include_usage": True}
    stream = client.chat.completions.create(
        model=system.model, messages=MESSAGES, max_tokens=12, stream=True, stream_options=options
    )
    frames = list(stream)
    assert frames[-1].usage.completion_tokens == 12
    assert "".join(f.choices[0].delta.content or "" for f in frames if f.choices).strip()


def test_streams_of_the_packages_defaults_fill_what_an_operator_sees(system, client):
    for _ in range(6):
        stream = client.chat.completions.create(model=system.model, messages=MESSAGES, max_tokens=4, stream=True)
        assert all(frame.choices and frame.usage is None for frame in stream)
    decisions = system.admin.get("/admin/v1/decisions?limit=6").json()["decisions"]
    reported = [decision["reported_cached_tokens"] for decision in decisions]
    assert len([tokens for tokens in reported if tokens is not None]) >= 4, "all but the first of each worker"
    assert system.metric("warmroute_rewrites_total") >= 4


def test_openai_completions_and_models(system, client):
    assert [model.id for model in client.models.list()] == [system.model]
    done = client.completions.create(model=system.model, prompt="def add(a, b):", max_tokens=8)
    assert done.usage.completion_tokens == 8
    by_ids = client.completions.create(model=system.model, prompt=[5, 6, 7, 8], max_tokens=4)
    assert by_ids.usage.prompt_tokens == 4
    chunks = list(client.completions.create(model=system.model, prompt="x = ", max_tokens=8, stream=True))
    assert chunks[-1].choices[0].finish_reason == "length"


def test_openai_errors_have_codes(system, client):
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="no-such-model", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=system.model, messages=MESSAGES, max_tokens=-1)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_streaming_and_not(system):
    body = json.dumps({"model": system.model, "messages": MESSAGES, "max_tokens": 6})
    command = ["curl", "-sS", "--fail-with-body", f"{system.url}/v1/chat/completions"]
    command += ["-H", "content-type: application/json", "-d"]
    answer = json.loads(subprocess.run([*command, body], capture_output=True, check=True).stdout)
    assert answer["usage"]["completion_tokens"] == 6
    streamed = json.dumps({**json.loads(body), "stream": True})
    text = subprocess.run([*command, streamed, "-N"], capture_output=True, check=True, text=True).stdout
    frames = [line for line in text.splitlines() if line.startswith("data: ")]
    assert frames[-1] == "data: [DONE]"
    assert len(frames) >= 7
