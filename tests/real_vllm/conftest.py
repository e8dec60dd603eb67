"""vLLM servers without a GPU and the gateway in front of them, to compare predicted cached tokens with reported
ones.
"""

import json
import os
import time
from collections import OrderedDict
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer, processors

from backends.clock.settings import ClockSettings
from backends.simulated.settings import shipped_model_dir
from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process, StartError, warmroute
from loadtest.fleet.vllm import RunningVllm, VllmWorker, find_vllm
from router.config.model import Config
from router.residency.chain import SEED, extend_chain, pack_tokens
from router.residency.prompt import Prompt
from router.tokenization.body.intake import parse
from router.tokenization.prompt_identifier import PromptIdentifier

ENVIRONMENT = "WARMROUTE_VLLM_ENV"
SERVERS_AT_ONCE = 2
URL = r"(http://[^\s\"',]+)"
FIXED = {"ignore_eos": True, "temperature": 0}
QUIET_S = 0.08
"""A view that has not changed for this long has received all events: an idle engine publishes nothing."""


def pytest_collection_modifyitems(items):
    for item in items:
        if "real_vllm" in item.path.parts[-2]:
            item.add_marker(pytest.mark.real_vllm)
            item.add_marker(pytest.mark.timeout(600))
    # Tests that share the plain server run one after the other, so that it starts once.
    items.sort(key=lambda item: "plain" not in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def executable():
    """Return the ``vllm`` command. `make test-vllm` names the environment, so that a missing command there is an
    error.
    """
    named = os.environ.pop(ENVIRONMENT, None)  # the gateway would read this variable as an unknown setting
    try:
        return find_vllm(Path(named) if named else None)
    except StartError as error:
        if named:
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def vllm(executable):
    """Return a function from vLLM flags to a running server with an empty cache. Equal calls share one server, and only
    a few servers are kept.

    Its attribute `worker` only describes a server, for tests that start and kill their own.
    """
    kept: OrderedDict[VllmWorker, RunningVllm] = OrderedDict()

    def describe(*flags: str, **settings) -> VllmWorker:
        clock = ClockSettings(time_scale=settings.pop("time_scale", 0.2), seed=settings.pop("seed", 0))
        clock = replace(
            clock, **{name: settings.pop(name) for name in ("kv_gib", "profile", "character_share") if name in settings}
        )
        return VllmWorker(executable=executable, clock=clock, flags=flags, **settings)

    def get(*flags: str, at_once: int = SERVERS_AT_ONCE, **settings) -> RunningVllm:
        worker = describe(*flags, **settings)
        server = kept.pop(worker, None)
        if server is not None and not server.process.alive:
            server = None
        if server is None:
            while len(kept) >= at_once:
                kept.popitem(last=False)[1].process.stop()
            server = RunningVllm(worker, f"vllm {' '.join(flags)}")
            try:
                server.wait_healthy()
            except BaseException:
                server.process.kill()
                raise
        elif worker.dev_mode:
            server.reset_prefix_cache()
        kept[worker] = server
        return server

    get.worker = describe
    yield get
    for server in kept.values():
        server.process.terminate()
    for server in kept.values():
        server.process.stop()


@dataclass(frozen=True)
class Answer:
    """One answer: the prediction at dispatch (None: no prediction) and vLLM's report (None: no report)."""

    predicted: int | None
    reported: int | None
    prompt_tokens: int | None
    status: int
    body: dict
    worker: str

    @property
    def text(self) -> str:
        choice = self.body["choices"][0]
        return choice["message"]["content"] if "message" in choice else choice["text"]


def joined(stream: str) -> dict:
    """Make one body out of a stream: the first choice's text, the usage of the last frame with one, and the first
    answerer."""
    text, usage, first = "", None, None
    for line in stream.splitlines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        chunk = json.loads(line.removeprefix("data: "))
        assert "error" not in chunk, chunk
        usage = chunk.get("usage") or (chunk.get("response") or {}).get("usage") or usage
        for choice in chunk.get("choices", ()):
            first = choice["index"] if first is None else first
            if choice["index"] == 0:
                text += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return {"choices": [{"text": text}], "usage": usage, "first": first}


class Gateway:
    """A gateway process in front of workers, with the calls that tests make."""

    def __init__(self, process: Process, url: str, admin_url: str):
        self.process = process
        self.url = url
        self.admin = httpx.Client(base_url=admin_url, timeout=30)
        self.client = httpx.Client(base_url=url, timeout=120)
        self.model = ""
        self.begin_comparison()

    @property
    def version(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.workers()[0]["version"].split(".")[:2])

    @cached_property
    def leaves_out_zero(self) -> bool:
        """Return whether the servers omit cached tokens if there are none (vLLM 0.23 does)."""
        return self.version < (0, 33)

    def begin_comparison(self) -> None:
        self.compared = 0
        self.wrong: list[str] = []

    def workers(self) -> list[dict]:
        return self.admin.get("/admin/v1/workers").json()["workers"]

    def candidates(self) -> list[dict]:
        return [candidate for worker in self.workers() for candidate in worker["candidates"]]

    def ready(self) -> bool:
        ready = all(worker["state"] == "ready" for worker in self.workers())
        return ready and all(candidate["self_test"] for candidate in self.candidates())

    def wait_for(self, condition, what: str, limit_s: float = 30.0):
        end_s = time.monotonic() + limit_s
        while not (value := condition()):
            assert time.monotonic() < end_s, f"{what} did not come within {limit_s:g} s: {self.workers()}"
            time.sleep(0.02)
        return value

    def settle(self) -> None:
        """Wait until no request is in flight and no event is on its way."""

        def picture():
            candidates = self.candidates()
            if any(candidate["load"]["running_requests"] for candidate in candidates):
                return None
            return [(candidate["events"] or {}).get("next_seq") for candidate in candidates]

        before, since_s = None, time.monotonic()
        while time.monotonic() - since_s < QUIET_S or before is None:
            now = picture()
            if now is None or now != before:
                before, since_s = now, time.monotonic()
            time.sleep(0.01)

    def send(self, path: str, body: dict, **headers: str) -> Answer:
        """Send one request for a whole answer, without waiting for events."""
        answer = self.client.post(path, json=body, headers=headers)
        streamed = answer.headers["content-type"].startswith("text/event-stream")
        content = joined(answer.text) if streamed else answer.json()
        usage = content.get("usage") or {}
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
        if usage and not details and self.leaves_out_zero:
            details = {"cached_tokens": 0}
        predicted = answer.headers.get("x-warmroute-predicted-cached-tokens")
        return Answer(
            predicted=int(predicted) if predicted is not None else None,
            reported=details.get("cached_tokens", usage.get("cache_read_input_tokens")),
            prompt_tokens=usage.get("prompt_tokens", usage.get("input_tokens")),
            status=answer.status_code,
            body=content,
            worker=answer.headers.get("x-warmroute-worker", ""),
        )

    def ask(self, path: str, body: dict, **headers: str) -> Answer:
        """Call `send`, wait for the events, and compare prediction and report to the token."""
        answer = self.send(path, body, **headers)
        assert answer.status == 200, answer.body
        self.settle()
        text = json.dumps(body)
        self.compare(answer, text if len(text) < 400 else f"{text[:100]} ... {text[-300:]}")
        return answer

    def compare(self, answer: Answer, what: str) -> None:
        self.compared += 1
        # Before 0.24 or so vLLM omits the details if nothing was cached.
        if answer.predicted != (answer.reported or 0):
            self.wrong.append(f"predicted {answer.predicted}, reported {answer.reported}: {what}")

    def chat(self, messages: list[dict] | str, max_tokens: int = 16, headers: dict | None = None, **fields) -> Answer:
        """Call `ask` for a chat completion. A text stands for one user message."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        body = {"model": self.model, "messages": messages, "max_tokens": max_tokens, **FIXED, **fields}
        return self.ask("/v1/chat/completions", body, **(headers or {}))

    def turn(self, messages: list[dict], text: str, **fields) -> Answer:
        """Ask the next question of a conversation, and add it and the answer to `messages`."""
        messages.append({"role": "user", "content": text})
        answer = self.chat(messages, **fields)
        messages.append({"role": "assistant", "content": answer.text})
        return answer

    def complete(self, prompt, max_tokens: int = 8, headers: dict | None = None, **fields) -> Answer:
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, **FIXED, **fields}
        return self.ask("/v1/completions", body, **(headers or {}))

    def residency(self) -> str:
        """Return how far the only candidate's view can be trusted."""
        (candidate,) = self.candidates()
        return candidate["residency"]

    def exact(self, at_least: int = 1) -> None:
        """Assert that every comparison so far agreed, and that there were enough of them."""
        assert not self.wrong, f"{len(self.wrong)} of {self.compared} differ:\n" + "\n".join(self.wrong[:10])
        assert self.compared >= at_least

    def stop(self) -> None:
        self.client.close()
        self.admin.close()
        self.process.stop()


def entry(server: RunningVllm) -> dict:
    """Return the server as an entry of a gateway's configuration. The publisher is named only if the server does not
    report it.
    """
    asked = httpx.get(f"{server.url}/kv_event_sources").status_code == 200
    return {"url": server.url} | ({} if asked or not server.worker.kv_events else {"kv_events": server.kv_events})


@contextmanager
def gateway(workers, *flags: str, **environment: str):
    """A ready gateway in front of `workers`, with the headers that tests read switched on.

    Workers are running servers, or entries of the configuration.
    """
    headers = {"WARMROUTE_HEADERS__WORKER": "true", "WARMROUTE_HEADERS__PREDICTED_CACHED_TOKENS": "true"}
    entries = [worker if isinstance(worker, dict) else entry(worker) for worker in workers]
    fleet = ("--set", f"workers={json.dumps(entries)}")
    command = warmroute("serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0", *fleet, *flags)
    process = Process(command, "gateway", {**headers, **environment})
    try:
        public = process.wait_for(rf"public port.*{URL}").group(1)
        admin = process.wait_for(rf"admin port.*{URL}").group(1)
        running = Gateway(process, public, admin)
        running.wait_for(running.ready, "every worker ready and tested", 60.0)
        running.settle()
        running.model = running.workers()[0]["models"][0]["id"]
    except BaseException:
        process.stop()
        raise
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def front():
    """Return a function that puts a gateway in front of running servers for the rest of the test."""
    contexts = []

    def begin(*servers: RunningVllm | dict, flags: tuple[str, ...] = (), **environment: str) -> Gateway:
        context = gateway(servers, *flags, **environment)
        running = context.__enter__()
        contexts.append(context)
        return running

    yield begin
    for context in reversed(contexts):
        context.__exit__(None, None, None)


def empty_cache(server: RunningVllm) -> None:
    """Empty the cache, and run a step so that the engine publishes that. An idle engine publishes only with its next
    step.
    """
    server.reset_prefix_cache()
    model = httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"]
    body = {"model": model, "prompt": "step", "max_tokens": 1}
    httpx.post(f"{server.url}/v1/completions", json=body).raise_for_status()


@pytest.fixture
def empty():
    """Return a function that empties a server's cache and makes it publish that."""
    return empty_cache


@pytest.fixture(scope="module")
def plain(vllm):
    """The server that most tests share: vLLM's defaults, and tools."""
    return vllm("--enable-auto-tool-choice", "--tool-call-parser", "hermes")


@pytest.fixture(scope="module")
def standing_front(plain):
    with gateway([plain]) as running:
        yield running


@pytest.fixture
def talk(plain, standing_front):
    """A gateway in front of the plain server with an empty cache and no comparison so far."""
    empty_cache(plain)
    standing_front.settle()
    standing_front.begin_comparison()
    return standing_front


@pytest.fixture(scope="session")
def model_with(tmp_path_factory):
    """Return a function that makes a model folder with one of the test templates. With `bos`, its tokenizer puts a
    token first.
    """
    made: dict[tuple[str, bool], Path] = {}

    def make(template: str, *, bos: bool = False) -> Path:
        folder = made.get((template, bos))
        if folder is None:
            folder = made[template, bos] = tmp_path_factory.mktemp(template)
            for name in ("config.json", "tokenizer_config.json"):
                (folder / name).write_bytes((shipped_model_dir() / name).read_bytes())
            text = (Path(__file__).with_name("templates") / f"{template}.jinja").read_text()
            (folder / "chat_template.jinja").write_text(text)
            tokenizer = Tokenizer.from_file(str(shipped_model_dir() / "tokenizer.json"))
            if bos:
                begin = ("<|im_start|>", tokenizer.token_to_id("<|im_start|>"))
                tokenizer.post_processor = processors.TemplateProcessing(
                    single="<|im_start|> $A", special_tokens=[begin]
                )
            tokenizer.save(str(folder / "tokenizer.json"))
        return folder

    return make


@dataclass(frozen=True)
class Rendering:
    """Names of bodies by result: ids `equal` to vLLM's, `wrong` ids, known `by_text` only, and `refused`."""

    equal: set[str]
    wrong: dict[str, str]
    by_text: dict[str, str]
    refused: set[str]


@pytest.fixture
async def rendering():
    """Return a function that compares the identity of bodies with a server's render endpoint."""
    identities = []

    async def identify(identity: PromptIdentifier, path: str, body: dict) -> Prompt | None:
        parsed = parse(path, json.dumps(body).encode())
        return await identity.identify(path, parsed, None)

    async def compare(server: RunningVllm, folder: Path, path: str, bodies: dict[str, dict]) -> Rendering:
        identity = PromptIdentifier(Config(model_dir=str(folder), trust_request_chat_template=True), environ={})
        identities.append(identity)
        model, seen = str(folder), Rendering(set(), {}, {}, set())
        identity.sources.learn(model, model, None, None, 131_072)
        # No connection is reused: vLLM closes one after a 500, possibly just after the next request was sent.
        fresh = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=fresh) as client:
            for name, fields in bodies.items():
                body = {"model": model, **fields}
                body.pop("cache_salt", None)  # this field changes the hashes, but no tokens
                prompt = await identify(identity, path, body)
                try:
                    answer = await client.post(f"{path}/render", json=body)
                except httpx.ReadError:  # vLLM closes the connection if a conversion raises
                    seen.refused.add(name)
                    continue
                if prompt is None or not prompt.exact:
                    seen.by_text[name] = str(identity.statistics()["text_reasons"])
                elif answer.status_code != 200:
                    seen.refused.add(name)
                else:
                    _hold(seen, name, prompt, answer.json())
        return seen

    yield compare
    for identity in identities:
        await identity.aclose()


def _hold(seen: Rendering, name: str, prompt: Prompt, rendered: object) -> None:
    ids = (rendered[0] if isinstance(rendered, list) else rendered)["token_ids"]
    same = prompt.tokens == len(ids) and list(prompt.chain(4)) == list(extend_chain(SEED, pack_tokens(ids), 4))
    if same:
        seen.equal.add(name)
    else:
        seen.wrong[name] = f"{prompt.tokens} tokens instead of {len(ids)}"


@pytest.fixture(scope="module")
def named_model_dir(tmp_path_factory):
    """The packaged tokenizer, with names for tokens that chat templates ask for."""
    folder = tmp_path_factory.mktemp("named")
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_bytes((shipped_model_dir() / name).read_bytes())
    config = json.loads((shipped_model_dir() / "tokenizer_config.json").read_text())
    names = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, **names}))
    return folder


@contextmanager
def launch_render(executable, model_dir: Path, *flags: str):
    """Start ``vllm launch render``. It has the server's whole path up to the engine, and needs a third of the time and
    memory.
    """
    port = free_ports(1)
    place = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "m"]
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", **ClockSettings().environment()}
    command = [str(executable), "launch", "render", str(model_dir), *place, *flags]
    process = Process(command, "vllm launch render", quiet)
    try:
        process.wait_for("Application startup complete", 180.0)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stop()


@pytest.fixture
def launched(executable):
    """Return a function from a model folder and flags to the URL of a render server for the rest of the test."""
    with ExitStack() as servers:
        yield lambda model_dir, *flags: servers.enter_context(launch_render(executable, model_dir, *flags))


@pytest.fixture(scope="module")
def trusting_renderer(executable, named_model_dir):
    """A render server that accepts chat templates from requests."""
    flags = ("--trust-request-chat-template", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    with launch_render(executable, named_model_dir, *flags) as url:
        yield url
