"""Aliases, the default and fallbacks as OpenAI's own client meets them, over workers of two models."""

import httpx
import openai
import pytest

from loadtest.demo.run import wait_until_ready
from loadtest.fleet.process import Process, warmroute
from tests.end_to_end.conftest import URL

pytestmark = pytest.mark.slow

MESSAGES = [{"role": "user", "content": "Name three prime numbers."}]
CONFIG = """\
host: 127.0.0.1
port: 0
admin_port: 0
models:
  big: {aliases: [gpt-4o], fallback: small, default: true}
  sql: {aliases: [database]}
workers: [{url: BIG}, {url: SMALL}]
"""


class Site:
    """Two workers of different models, and a gateway that knows names for them."""

    def __init__(self, folder) -> None:
        self.started: list[Process] = []
        self.workers = {name: self.worker(name) for name in ("big", "small")}
        file = folder / "warmroute.yaml"
        file.write_text(CONFIG.replace("BIG", self.workers["big"]).replace("SMALL", self.workers["small"]))
        gateway = self.process("serve", "--config", str(file))
        self.public = gateway.wait_for(rf"public port.*{URL}")[1]
        self.admin = gateway.wait_for(rf"admin port.*{URL}")[1]
        wait_until_ready(self.admin, 2)

    def process(self, *arguments) -> Process:
        self.started.append(Process(warmroute(*arguments), f"warmroute {arguments[0]}"))
        return self.started[-1]

    def worker(self, name) -> str:
        flags = ["--host", "127.0.0.1", "--port", "0", "--time-scale", "0.02", "--served-model-name", name]
        flags += ["--lora", "sql"] if name == "big" else []
        return self.process("worker", *flags).wait_for(rf"worker {URL}")[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("models"))
    yield site
    for process in site.started:
        process.stop()


@pytest.fixture
def client(site):
    return openai.OpenAI(base_url=f"{site.public}/v1", api_key="unused", max_retries=0)


def asked(client, model, **fields):
    return client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=3, **fields)


def test_an_alias_is_served_by_its_model(client):
    assert asked(client, "gpt-4o").model == "big"
    assert asked(client, "database").model == "sql"
    assert {event.model for event in asked(client, "gpt-4o", stream=True)} == {"big"}
    assert client.completions.create(model="gpt-4o", prompt="x", max_tokens=2).model == "big"
    assert client.responses.create(model="gpt-4o", input="x", max_output_tokens=2).model == "big"


def test_models_and_aliases_are_listed_and_retrieved(client):
    assert {model.id for model in client.models.list()} == {"big", "small", "sql", "gpt-4o", "database"}
    assert client.models.retrieve("gpt-4o").id == "gpt-4o"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.models.retrieve("none")
    assert unknown.value.code == "model_not_found"


def test_a_request_without_a_model_gets_the_default(site):
    answer = httpx.post(f"{site.public}/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 2})
    assert (answer.status_code, answer.json()["model"]) == (200, "big")


def test_a_drained_model_is_served_by_its_fallback(site, client):
    worker = site.workers["big"].removeprefix("http://")
    assert httpx.post(f"{site.admin}/admin/v1/workers/{worker}/drain").status_code == 200
    try:
        assert asked(client, "big").model == "small"
        assert asked(client, "gpt-4o").model == "small"
    finally:
        httpx.post(f"{site.admin}/admin/v1/workers/{worker}/undrain?wait_s=9")
    assert asked(client, "big").model == "big"
    assert 'warmroute_fallbacks_total{served="small",wanted="big"} 2' in httpx.get(f"{site.admin}/metrics").text


def test_an_alias_that_is_added_at_run_time_serves_the_next_request(site, client):
    with pytest.raises(openai.NotFoundError):
        asked(client, "assistant")
    models = f"{site.admin}/admin/v1/models"
    before = httpx.get(models)
    small = before.json()["models"].get("small", {}) | {"aliases": ["assistant"]}
    changed = httpx.put(f"{models}/small", json=small, headers={"if-match": before.headers["etag"]})
    assert changed.status_code == 200, changed.text
    assert asked(client, "assistant").model == "small"
    assert client.models.retrieve("assistant").id == "assistant"
    assert httpx.post(f"{site.admin}/admin/v1/revisions/1/restore").status_code == 200
    with pytest.raises(openai.NotFoundError):
        asked(client, "assistant")
