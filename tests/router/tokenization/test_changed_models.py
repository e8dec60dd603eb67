import shutil
from pathlib import Path

import pytest

import backends.simulated
from router.config.model import Config, ModelConfig
from router.residency.prompt import PromptSource
from router.tokenization.body.parsed_body import CHAT_PATH
from router.tokenization.named_files import changed_files
from tests.router.tokenization.test_prompt_identifier import ask, chat

MODEL_DIR = Path(backends.simulated.__file__).with_name("model")
BODY = chat("hi there", "hello", "what is a prefix cache?")


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(MODEL_DIR, tmp_path / "model"))


@pytest.fixture
def short(tmp_path):
    file = tmp_path / "short.jinja"
    file.write_text("{{ messages[-1].content }}")
    return str(file)


@pytest.fixture
def identity(identifier):
    made = identifier(Config())
    made.sources.learn("m", None, None)
    return made


async def use(identity, **models):
    settings = {name: ModelConfig(**fields) for name, fields in models.items()}
    return identity.sources.use(settings, await identity.sources.read(settings))


async def test_a_folder_that_is_added_tokenises_the_next_prompt(identity, folder):
    assert (await ask(identity, CHAT_PATH, BODY)).source is PromptSource.TEXT
    assert await use(identity, m={"dir": str(folder)}) == {"m"}
    assert (await ask(identity, CHAT_PATH, BODY)).source is PromptSource.RENDERED
    assert identity.describe("m") == f"rendered locally from {folder}"


async def test_a_name_on_request_has_its_bases_files_and_its_own_blocks(identity, folder, short):
    files = {"n": {"dir": str(folder)}, "k": {"dir": str(folder), "chat_template": short}}
    await use(identity, **files, m={"dir": str(folder), "on_request": ("a-*",)})
    base = await ask(identity, CHAT_PATH, BODY)
    first, second = [await ask(identity, CHAT_PATH, BODY, name) for name in ("a-1", "a-2")]
    assert first.source is base.source is PromptSource.RENDERED
    assert first.tokens == second.tokens == base.tokens
    assert len({tuple(prompt.chain(16)) for prompt in (base, first, second)}) == 3


async def test_another_template_renders_the_next_prompt(identity, folder, short):
    await use(identity, m={"dir": str(folder)})
    long = await ask(identity, CHAT_PATH, BODY)
    assert await use(identity, m={"dir": str(folder), "chat_template": short}) == {"m"}
    assert (await ask(identity, CHAT_PATH, BODY)).tokens < long.tokens
    await use(identity, m={"dir": str(folder)})
    assert (await ask(identity, CHAT_PATH, BODY)).tokens == long.tokens


async def test_names_alone_leave_the_files_as_they_are(identity, folder):
    await use(identity, m={"dir": str(folder)})
    changed = {"m": ModelConfig(dir=str(folder), aliases=("chat",)), "n": ModelConfig(aliases=("x",))}
    assert await identity.sources.read(changed) == {}
    assert identity.sources.use(changed, {}) == frozenset()


async def test_a_model_without_settings_has_what_its_workers_report(identity, folder):
    await use(identity, m={"dir": str(MODEL_DIR)})
    identity.sources.learn("m", str(folder), None)
    assert identity.describe("m") == f"rendered locally from {MODEL_DIR}"
    assert await use(identity) == {"m"}
    assert identity.describe("m") == f"rendered locally from {folder}"


async def test_a_model_that_no_worker_serves_leaves_with_its_settings(identity, folder):
    await use(identity, n={"dir": str(folder)})
    assert identity.statistics()["models_local"] == 1
    await use(identity)
    assert identity.statistics()["models_local"] == 0


async def test_files_that_were_replaced_meanwhile_are_read_again(identity, folder, short):
    template = folder / "own.jinja"
    template.write_text(Path(short).read_text())
    named = {"dir": str(folder), "chat_template": str(template)}
    await use(identity, m=named)
    before = await ask(identity, CHAT_PATH, BODY)
    await use(identity)
    template.write_text("{{ messages[-1].content }} and {{ messages[-1].content }}")
    await use(identity, m=named)
    assert (await ask(identity, CHAT_PATH, BODY)).tokens > before.tokens


async def test_a_template_applies_to_files_found_by_the_model(identity, folder, short):
    identity.sources.learn("o", str(folder), None)
    await identity.identify(CHAT_PATH, parsed_for("o"), None)
    whole = await ask(identity, CHAT_PATH, chat("a", "b", "c " * 50, model="o"))
    await use(identity, o={"chat_template": short})
    assert identity.describe("o") == f"rendered locally from {folder}"
    assert (await ask(identity, CHAT_PATH, chat("a", "b", "c " * 50, model="o"))).tokens < whole.tokens


def parsed_for(model):
    from router.tokenization.body.intake import parse

    return parse(CHAT_PATH, chat("x", model=model))


def problems(before, after):
    return [(place, problem) for place, problem, _ in changed_files(Config(models=before), Config(models=after))]


def test_only_changed_files_are_checked(folder, short):
    broken = {"m": ModelConfig(dir=str(folder), chat_template=short)}
    (folder / "tokenizer.json").write_text("{")
    assert problems(broken, {**broken, "n": ModelConfig(aliases=("x",))}) == []
    (found,) = problems({}, broken)
    assert found[0] == ("models", "m", "dir")
    assert "cannot be parsed" in found[1]


def test_a_broken_template_and_a_missing_one_are_named(folder, short):
    Path(short).write_text("{% if %}")
    (found,) = problems({}, {"m": ModelConfig(dir=str(folder), chat_template=short)})
    assert found[0] == ("models", "m", "chat_template")
    assert problems({}, {"m": ModelConfig(chat_template="/none")}) == [
        (("models", "m", "chat_template"), "no file '/none'")
    ]
