"""Tokenizer files that come from a hub while the gateway serves, and the setting that chooses a source."""

import asyncio
import gc
import json
from pathlib import Path

import pytest

import backends.simulated
from router.config.model import Config, ModelConfig
from router.config.problems import ConfigError
from router.residency.prompt import PromptSource
from router.settings import load
from router.tokenization.body.intake import parse
from router.tokenization.body.parsed_body import CHAT_PATH
from router.tokenization.local.sources import Way
from router.tokenization.prompt_identifier import PromptIdentifier
from tests.support.hub import hub
from tests.support.waiting import eventually

MODEL_DIR = Path(backends.simulated.__file__).with_name("model")
URL = "http://127.0.0.1:1/tokenize"


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def server():
    with hub(m=MODEL_DIR) as server:
        yield server


@pytest.fixture
async def identify(server, tmp_path):
    made = []

    def identify(config=None, clock=None, **variables):
        environ = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": server.url, **variables}
        made.append(PromptIdentifier(config or Config(), environ=environ, clock=clock or Clock()))
        return made[-1]

    yield identify
    for each in made:
        await each.aclose()


async def source_of(identity, model="m"):
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    parsed = parse(CHAT_PATH, json.dumps(body).encode())
    return (await identity.identify(CHAT_PATH, parsed, None)).source


async def test_a_worker_tokenises_until_the_files_have_come(identify, server):
    server.trickle_s = 0.01
    identity = identify()
    identity.sources.learn("m", "org/m", URL)
    fetching = f"tokenizer files of org/m are being fetched from {server.url}"
    assert identity.describe("m") == f"worker's /tokenize ({fetching})"
    assert identity.sources.way("m") is Way.WORKER
    assert await source_of(identity) is PromptSource.TEXT  # no worker answers, and nobody waits for the hub
    server.trickle_s = 0.0
    await asyncio.wait_for(identity.sources.files_read(), 60)
    assert identity.sources.way("m") is Way.LOCAL
    assert identity.describe("m").startswith("rendered locally from ")
    assert identity.describe("m").endswith(f", fetched from {server.url}")
    assert await source_of(identity) is PromptSource.RENDERED


async def test_the_next_gateway_finds_them_in_the_cache(identify, server):
    first = identify()
    first.sources.learn("m", "org/m", URL)
    await asyncio.wait_for(first.sources.files_read(), 60)
    server.status = 503
    second = identify(HF_HUB_OFFLINE="1")
    second.sources.learn("m", "org/m", URL)
    await second.sources.files_read()
    assert second.sources.way("m") is Way.LOCAL and "fetched" not in second.describe("m")


async def test_a_served_name_may_be_the_name_on_the_hub(identify):
    identity = identify()
    identity.sources.learn("org/m", "/models/of-the-worker", URL)
    await asyncio.wait_for(identity.sources.files_read(), 60)
    assert identity.sources.way("org/m") is Way.LOCAL


async def test_a_hub_that_fails_is_asked_again_later(identify, server):
    clock = Clock()
    identity = identify(clock=clock)
    server.status = 503
    identity.sources.learn("m", "org/m", URL)
    await asyncio.wait_for(identity.sources.files_read(), 60)
    why = f"tokenizer files are not fetched: {server.url} answered 503"
    assert identity.describe("m") == f"worker's /tokenize ({why})"
    server.status, asked = None, len(server.asked)
    identity.sources.learn("m", "org/m", URL)
    await identity.sources.files_read()
    assert len(server.asked) == asked, "it is not time yet"
    clock.now_s += 61.0
    identity.sources.learn("m", "org/m", URL)
    await asyncio.wait_for(identity.sources.files_read(), 60)
    assert identity.sources.way("m") is Way.LOCAL


@pytest.mark.parametrize(
    ("config", "variables", "described"),
    [
        (Config(tokenizer="local"), {}, "worker's /tokenize"),
        (Config(tokenizer="worker"), {}, "worker's /tokenize"),
        (Config(models={"m": ModelConfig(tokenizer="local")}), {}, "worker's /tokenize"),
        (Config(models={"m": ModelConfig(tokenizer="worker")}, model_dir=str(MODEL_DIR)), {}, "worker's /tokenize"),
        (
            Config(),
            {"HF_HUB_OFFLINE": "1"},
            "worker's /tokenize (tokenizer files of org/m are not fetched: HF_HUB_OFFLINE is set)",
        ),
        (
            Config(models={"m": ModelConfig(tokenizer=str(MODEL_DIR / "tokenizer.json"))}, tokenizer="worker"),
            {},
            f"rendered locally from {MODEL_DIR}",
        ),
    ],
)
async def test_the_settings_and_the_environment_choose(identify, server, config, variables, described):
    identity = identify(config, **variables)
    identity.sources.learn("m", "org/m", URL)
    await identity.sources.files_read()
    assert identity.describe("m") == described
    assert server.asked == []


async def test_a_model_may_be_fetched_though_the_others_are_not(identify):
    identity = identify(Config(tokenizer="local", models={"m": ModelConfig(tokenizer="auto")}))
    identity.sources.learn("m", "org/m", URL)
    await asyncio.wait_for(identity.sources.files_read(), 60)
    assert identity.sources.way("m") is Way.LOCAL


async def test_a_changed_choice_counts_at_once(identify, server):
    identity = identify(Config(models={"m": ModelConfig(tokenizer="local")}))
    identity.sources.learn("m", "org/m", URL)
    assert identity.sources.use({"m": ModelConfig(tokenizer="auto")}, {}) == {"m"}
    identity.sources.learn("m", "org/m", URL)
    await asyncio.wait_for(identity.sources.files_read(), 60)
    assert identity.sources.way("m") is Way.LOCAL
    assert identity.sources.use({"m": ModelConfig(tokenizer="worker")}, {}) == {"m"}
    identity.sources.learn("m", "org/m", URL)
    assert (identity.describe("m"), identity.sources.chosen("m")) == ("worker's /tokenize", "worker")
    assert identity.sources.use({}, {}) == {"m"}
    await eventually(lambda: identity.sources.way("m") is Way.LOCAL)


async def test_a_file_from_the_hub_that_is_broken_leaves_the_worker(identify, server, caplog):
    server.files["org/m"]["tokenizer.json"] = b"{"
    identity = identify()
    identity.sources.learn("m", "org/m", URL)
    await asyncio.wait_for(identity.sources.files_read(), 60)
    assert identity.describe("m") == "worker's /tokenize"
    gc.collect()
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "tokenizer: remote\n",
            "write its path or that of its folder, or auto, local, worker",
        ),
        ("models: {m: {tokenizer: /nowhere}}\n", "no tokenizer.json at '/nowhere'"),
        (
            f"model_dir: {MODEL_DIR}\ntokenizer: worker\n",
            "model_dir is set, and tokenizer is worker",
        ),
        (f"models: {{m: {{dir: {MODEL_DIR}, tokenizer: worker}}}}\n", "dir is set, and tokenizer is worker"),
    ],
)
def test_mistakes_are_named(tmp_path, text, said):
    (tmp_path / "w.yaml").write_text(text)
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
        load({}, {}, tmp_path / "w.yaml")


@pytest.mark.parametrize("choice", ["auto", "local", "worker", str(MODEL_DIR), str(MODEL_DIR / "tokenizer.json")])
def test_every_choice_loads(tmp_path, choice):
    (tmp_path / "w.yaml").write_text(f"tokenizer: {choice}\nmodels: {{m: {{tokenizer: {choice}}}}}\n")
    config = load({}, {}, tmp_path / "w.yaml")
    assert (config.tokenizer, config.models["m"].tokenizer) == (choice, choice)
