"""A worker's /tokenize as the source, against a real server on loopback."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import trustme
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from backends.vllm.control import WorkerClient
from backends.worker import parse_endpoint
from router.config.model import Config, WorkerTlsConfig
from router.residency.chain import SEED, extend_chain, pack_tokens
from router.residency.prompt import Prompt, PromptSource
from router.security.tls import WorkerTls
from router.tokenization.body.intake import parse
from router.tokenization.body.parsed_body import CHAT_PATH, COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH
from router.tokenization.preparing import MAX_ASKED_CHARS
from router.tokenization.prompt_identifier import PromptIdentifier
from router.tokenization.remote_tokenizer import PAUSE_S, WorkerTokenizer, tokenize_url
from router.tokenization.text import TextPrompt


class Worker:
    """Answers with one id per character; `status` other than 200 makes it fail."""

    def __init__(self) -> None:
        self.questions: list[dict] = []
        self.hosts: list[str] = []
        self.status = 200
        self.url = ""

    async def tokenize(self, request: Request) -> Response:
        body = await request.json()
        self.questions.append(body)
        self.hosts.append(request.headers["host"])
        if self.status != 200:
            return Response(status_code=self.status)
        text = body["prompt"] if "prompt" in body else "".join(m["content"] for m in body["messages"])
        ids = [ord(character) for character in text]
        return JSONResponse({"count": len(ids), "max_model_len": 4096, "tokens": ids, "token_strs": None})


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    made = Worker()
    app = Starlette(routes=[Route("/tokenize", made.tokenize, methods=["POST"])])
    listening = socket.create_server(("127.0.0.1", 0))
    made.url = f"http://127.0.0.1:{listening.getsockname()[1]}/tokenize"
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    yield made
    server.should_exit = True
    await task


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def identity(identifier, worker: Worker) -> PromptIdentifier:
    made = identifier(Config(), clock=Clock())
    made.sources.learn("m", None, worker.url)
    return made


async def ask(identity: PromptIdentifier, path: str, body: dict) -> Prompt | None:
    parsed = parse(path, json.dumps({"model": "m", **body}).encode())
    return await identity.identify(path, parsed, None)


CHAT = {"messages": [{"role": "user", "content": "some words " * 20}]}


async def test_a_worker_is_asked_once_per_request(worker: Worker, identity: PromptIdentifier) -> None:
    assert identity.describe("m") == "worker's /tokenize"
    for _ in range(3):
        prompt = await ask(identity, CHAT_PATH, CHAT)
        assert prompt is not None and prompt.source is PromptSource.WORKER and prompt.exact and prompt.tokens == 220
        ids = [ord(character) for character in "some words " * 20]
        assert list(prompt.chain(16)) == list(extend_chain(SEED, pack_tokens(ids), 16))
    assert worker.questions == [{"model": "m", **CHAT}]


@pytest.mark.parametrize("path", [CHAT_PATH, COMPLETIONS_PATH])
async def test_a_text_that_cannot_fit_the_model_is_not_asked_about(
    worker: Worker, identity: PromptIdentifier, path: str
) -> None:
    identity.sources.learn("m", None, worker.url, context_tokens=500)
    text = "some words " * 1_000
    body = {"prompt": text} if path == COMPLETIONS_PATH else {"messages": [{"role": "user", "content": text}]}
    prompt = await ask(identity, path, body)
    assert prompt is not None and prompt.source is PromptSource.TEXT
    assert worker.questions == []


async def test_a_text_that_takes_too_long_to_read_back_is_not_asked_about(
    worker: Worker, identity: PromptIdentifier
) -> None:
    prompt = await ask(identity, COMPLETIONS_PATH, {"prompt": "words " * (MAX_ASKED_CHARS // 5)})
    assert prompt is not None and prompt.source is PromptSource.TEXT
    assert worker.questions == []


async def test_an_answer_of_more_ids_than_fit_the_model_is_not_decoded(worker: Worker, monkeypatch) -> None:
    tokenizer = WorkerTokenizer(1_000_000, Clock())
    question = json.dumps({"prompt": "x" * 40_000}).encode()
    assert len(await tokenizer.ask(1, [worker.url], question, 40_000) or ()) == 40_000
    monkeypatch.setattr("router.tokenization.remote_tokenizer.msgspec.json.decode", None)
    assert await tokenizer.ask(2, [worker.url], question, 1_000) is None
    assert tokenizer.trouble([worker.url]) is None  # the worker's answer was valid
    await tokenizer.aclose()


@pytest.mark.parametrize("host", ["", None, "vllm.internal"])
async def test_a_worker_is_asked_with_the_host_of_its_settings(worker: Worker, host: str | None) -> None:
    endpoint = replace(parse_endpoint(worker.url.removesuffix("/tokenize")), host_header=host)
    tokenizer = WorkerTokenizer(1 << 20, asyncio.get_running_loop().time)
    question = json.dumps({"model": "m", "prompt": "some words"}).encode()
    assert await tokenizer.ask(1, [tokenize_url(endpoint)], question) is not None
    assert worker.hosts == [host or endpoint.authority]
    await tokenizer.aclose()


async def test_models_do_not_share_answers(worker: Worker, identity: PromptIdentifier) -> None:
    identity.sources.learn("other", None, worker.url)
    for model in ("m", "other"):  # by the same bytes, as a fallback does
        parsed = parse(CHAT_PATH, json.dumps({"model": "m", **CHAT}).encode())
        parsed.model = model
        assert await identity.identify(CHAT_PATH, parsed, None) is not None
    assert [body["model"] for body in worker.questions] == ["m", "other"]


async def test_a_question_has_the_fields_of_the_body(worker: Worker, identity: PromptIdentifier) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    passed = {"tools": tools, "chat_template_kwargs": {"a": 1}, "add_generation_prompt": False}
    await ask(identity, CHAT_PATH, {**CHAT, **passed, "stream": True, "seed": 4})
    await ask(identity, COMPLETIONS_PATH, {"prompt": "text", "add_special_tokens": False, "max_tokens": 4})
    await ask(identity, CHAT_PATH, {**CHAT, "add_generation_prompt": False, "continue_final_message": True})
    assert [sorted(body) for body in worker.questions] == [
        ["add_generation_prompt", "chat_template_kwargs", "messages", "model", "tools"],
        ["add_special_tokens", "model", "prompt"],
        ["add_generation_prompt", "continue_final_message", "messages", "model"],
    ]


async def test_other_apis_are_asked_as_chats(worker: Worker, identity: PromptIdentifier) -> None:
    said = [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {}}]}]
    tools = [{"name": "f", "input_schema": {}}]
    for path, body in (
        (MESSAGES_PATH, {"system": "S", "messages": said, "tools": tools, "max_tokens": 4, "add_special_tokens": True}),
        (RESPONSES_PATH, {"instructions": "S", "input": "hi", "max_output_tokens": 4}),
    ):
        prompt = await ask(identity, path, body)
        assert prompt is not None and prompt.source is PromptSource.WORKER and prompt.tokens == 3
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}]
    function = {"name": "f", "description": None, "strict": None, "defer_loading": None}
    shown = {"type": "function", "function": {**function, "parameters": {"type": "object"}}}
    expected = {"model": "m", "messages": messages}
    ending = {"add_generation_prompt": True, "continue_final_message": False, "add_special_tokens": True}
    assert worker.questions == [{**expected, "tools": [shown]}, {**expected, **ending}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (MESSAGES_PATH, {"thinking": {"type": "disabled"}}),
        (MESSAGES_PATH, {"output_config": {"effort": "low"}}),
        (MESSAGES_PATH, {"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "late"}]}),
        (RESPONSES_PATH, {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]}),
        (RESPONSES_PATH, {"input": "a", "reasoning": {"effort": "low"}}),
        (RESPONSES_PATH, {"input": "a", "truncation": "auto"}),
    ],
)
async def test_fields_of_other_apis_only_are_not_asked(
    worker: Worker, identity: PromptIdentifier, path: str, body: dict
) -> None:
    prompt = await ask(identity, path, {**CHAT, **body} if path == MESSAGES_PATH else body)
    assert prompt is not None and prompt.source is PromptSource.TEXT
    assert worker.questions == []


@pytest.mark.parametrize(
    "fields",
    [
        {"documents": [{"text": "x"}]},
        {"reasoning_effort": "low"},
        {"chat_template": "{{ messages }}"},
        {"truncate_prompt_tokens": 4},
        {"mm_processor_kwargs": {"a": 1}},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]},
    ],
)
async def test_fields_unknown_to_tokenize_are_not_asked(
    worker: Worker, identity: PromptIdentifier, fields: dict
) -> None:
    prompt = await ask(identity, CHAT_PATH, {**CHAT, **fields})
    assert prompt is not None and prompt.source is PromptSource.TEXT
    assert worker.questions == []


async def test_a_failing_worker_is_paused(identifier, worker: Worker) -> None:
    clock = Clock()
    identity = identifier(Config(), clock=clock)
    identity.sources.learn("m", None, worker.url)
    worker.status = 500
    for _ in range(3):
        prompt = await ask(identity, CHAT_PATH, CHAT)
        assert prompt is not None and prompt.source is PromptSource.TEXT
    assert len(worker.questions) == 1
    parsed = lambda: parse(CHAT_PATH, json.dumps({"model": "m", **CHAT}).encode())  # noqa: E731
    assert isinstance(identity.identify_now(CHAT_PATH, parsed(), None), TextPrompt), "without a wait"
    worker.status = 200
    clock.now_s += PAUSE_S + 0.1
    prompt = await ask(identity, CHAT_PATH, CHAT)
    assert prompt is not None and prompt.source is PromptSource.WORKER
    known = identity.identify_now(CHAT_PATH, parsed(), None)
    assert isinstance(known, Prompt) and list(known.chain(16)) == list(prompt.chain(16))


async def test_the_next_worker_is_asked_after_a_failure(identifier, worker: Worker, unused_tcp_port: int) -> None:
    identity = identifier(Config())
    identity.sources.learn("m", None, worker.url)
    identity.sources.learn("m", None, f"http://127.0.0.1:{unused_tcp_port}/tokenize")
    sources = [(await ask(identity, COMPLETIONS_PATH, {"prompt": f"text {n}"})).source for n in range(2)]
    assert sources == [PromptSource.TEXT, PromptSource.WORKER]


async def test_a_refused_question_pauses_no_worker(worker: Worker, identity: PromptIdentifier) -> None:
    worker.status = 400
    assert (await ask(identity, CHAT_PATH, CHAT)).source is PromptSource.TEXT
    worker.status = 200
    assert (await ask(identity, CHAT_PATH, CHAT)).source is PromptSource.WORKER


async def test_remembered_answers_are_bounded(worker: Worker) -> None:
    remote = WorkerTokenizer(5_000, Clock())
    for number in range(20):
        assert await remote.ask(number, [worker.url], json.dumps({"prompt": "x" * 300}).encode()) is not None
    assert remote.statistics()["bytes"] <= 5_000 and remote.known(19) is not None and remote.known(0) is None
    await remote.aclose()


async def test_a_worker_that_does_not_tokenise_is_described_so(worker: Worker, identity: PromptIdentifier) -> None:
    assert identity.describe("m") == "worker's /tokenize"
    worker.status = 404
    body = json.dumps({"model": "m", "prompt": "some text"}).encode()
    prompt = await identity.identify(COMPLETIONS_PATH, parse(COMPLETIONS_PATH, body), None)
    assert prompt is not None and prompt.source is PromptSource.TEXT
    assert identity.describe("m").startswith("text only: ") and "/tokenize answered 404" in identity.describe("m")


async def test_a_worker_is_asked_over_tls(tmp_path):
    """The question succeeds with the CA for workers, and fails without."""
    ca = trustme.CA()
    ca_file, pair_file = str(tmp_path / "ca.pem"), str(tmp_path / "both.pem")
    ca.cert_pem.write_to_path(ca_file)
    ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pair_file)
    made = Worker()
    app = Starlette(routes=[Route("/tokenize", made.tokenize, methods=["POST"])])
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"https://127.0.0.1:{listening.getsockname()[1]}/tokenize"
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", ssl_certfile=pair_file))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    question = json.dumps({"prompt": "abc"}).encode()
    for settings, expected in ((WorkerTlsConfig(ca_file=ca_file), [97, 98, 99]), (WorkerTlsConfig(), None)):
        tokenizer = WorkerTokenizer(1_000, Clock(), client=WorkerClient(tls=WorkerTls(settings).context_for))
        ids = await tokenizer.ask(1, [url], question)
        assert (None if ids is None else list(ids)) == expected
        await tokenizer.aclose()
    assert len(made.questions) == 1
    server.should_exit = True
    await task
