"""Fetching tokenizer files from a hub on loopback: what arrives, what is refused, and that it ends."""

import time
from pathlib import Path

import pytest

import backends.simulated
from router.hub import fetch, fetcher
from router.hub.fetcher import Fetched, HubFetcher, is_hub_name
from tests.support.hub import hub
from tests.support.waiting import block_until

MODEL_DIR = Path(backends.simulated.__file__).with_name("model")


@pytest.fixture
def server():
    with hub(m=MODEL_DIR) as server:
        yield server


@pytest.fixture
def fetched(server, tmp_path):
    made = []

    def fetched(name="org/m", **variables):
        made.append(HubFetcher({"HF_HOME": str(tmp_path), "HF_ENDPOINT": server.url, **variables}))
        return made[-1].fetch(name).result(timeout=60)

    yield fetched
    for each in made:
        each.close()


def test_the_tokenizer_files_arrive_in_the_cache_and_nothing_else(server, fetched, tmp_path):
    server.files["org/m"] |= {
        "model.safetensors": b"weights",
        "modeling.py": b"code",
        "chat_template.jinja": b"{{ 1 }}",
    }
    found = fetched()
    assert found.folder.is_relative_to(tmp_path / "hub" / "models--org--m" / "snapshots")
    assert {path.name for path in found.folder.iterdir()} == {
        "tokenizer.json", "tokenizer_config.json", "config.json", "chat_template.jinja"
    }  # fmt: skip
    assert (found.folder / "tokenizer.json").read_bytes() == (MODEL_DIR / "tokenizer.json").read_bytes()
    assert not {"model.safetensors", "modeling.py", "README.md"} & server.names
    assert {given for _, _, given in server.asked} == {None}


def test_the_token_is_sent_to_the_mirror(server, fetched):
    server.token = "secret"
    assert fetched(HF_TOKEN="secret").folder is not None


@pytest.mark.parametrize("variables", [{}, {"HF_TOKEN": "wrong"}])
def test_a_model_that_may_not_be_read_names_the_token(server, fetched, caplog, variables):
    server.token = "secret"
    found = fetched(**variables)
    assert "HF_TOKEN may not read" in found.problem and found.again_s == fetcher.LATER_S
    assert "secret" not in found.problem
    assert [record.levelname for record in caplog.records] == ["WARNING"]


PROBLEMS = {
    "no model": ({}, "org/none", {}, "the hub has no model org/none, or HF_TOKEN may not read it", fetcher.LATER_S),
    "no tokenizer": (
        {"without": "tokenizer.json"},
        "org/m",
        {},
        "org/m has no tokenizer.json on the hub",
        fetcher.LATER_S,
    ),
    "Mistral's": ({"with": "tekken.json"}, "org/m", {}, "which its workers use", fetcher.LATER_S),
    "a hub that fails": ({"status": 503}, "org/m", {}, "{hub} answered 503", fetcher.SOON_S),
    "no hub": ({}, "org/m", {"HF_ENDPOINT": "http://127.0.0.1:1"}, "http://127.0.0.1:1", fetcher.SOON_S),
    "too large": ({"claims": fetch.MOST_FILE_BYTES + 1}, "org/m", {}, "at most 67108864 are read", fetcher.LATER_S),
    "no cache": ({}, "org/m", {"HF_HOME": __file__}, "", fetcher.SOON_S),
}


@pytest.mark.parametrize(("hub", "name", "variables", "said", "again_s"), PROBLEMS.values(), ids=PROBLEMS)
def test_files_that_do_not_come_are_a_problem_with_its_reason(server, fetched, hub, name, variables, said, again_s):
    server.status = hub.get("status", server.status)
    server.files["org/m"].pop(hub.get("without"), None)
    server.files["org/m"] |= {hub["with"]: b"{}"} if "with" in hub else {}
    server.claims |= {"tokenizer.json": hub["claims"]} if "claims" in hub else {}
    found = fetched(name, **variables)
    assert found.folder is None and found.problem and said.format(hub=server.url) in found.problem
    assert found.again_s == again_s and server.names == set()


def test_a_body_without_end_is_cut_off_and_takes_little_of_the_disk(server, fetched, tmp_path):
    server.endless = True
    found = fetched()
    assert found.folder is None and "67108864" in found.problem
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= fetch.MOST_FILE_BYTES


def test_a_slow_hub_is_given_up(server, fetched, monkeypatch):
    monkeypatch.setattr(fetcher, "FETCH_S", 2)
    server.trickle_s = 1.0
    found = fetched()
    assert found == Fetched(None, f"{server.url} took longer than 2 s", fetcher.LATER_S)


def test_the_end_of_the_gateway_ends_the_child(server, tmp_path):
    server.trickle_s = 1.0
    one = HubFetcher({"HF_HOME": str(tmp_path), "HF_ENDPOINT": server.url})
    future = one.fetch("org/m")
    assert one.fetch("org/m") is future, "a model is fetched once"
    waiting = one.fetch("org/other")
    block_until(lambda: "tokenizer.json" in server.names, 30)
    began_s = time.monotonic()
    one.close()
    assert future.result(timeout=10).folder is None and waiting.cancelled()
    assert time.monotonic() - began_s < 10


def test_offline_and_too_many_models_are_reasons_not_to_fetch(tmp_path, monkeypatch):
    assert HubFetcher({"HF_HUB_OFFLINE": "1"}).why_not("org/m") == "HF_HUB_OFFLINE is set"
    assert HubFetcher({"HF_HUB_OFFLINE": "0"}).why_not("org/m") is None
    monkeypatch.setattr(fetcher, "MOST_MODELS", 0)
    assert HubFetcher({}).why_not("org/m") == "0 models have been fetched"


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("org/model-1.5", True),
        ("model", False),
        ("../etc", False),
        ("a/b/c", False),
        ("/abs/path", False),
        (None, False),
    ],
)
def test_names_of_the_hub(name, is_one):
    assert is_hub_name(name) is is_one
