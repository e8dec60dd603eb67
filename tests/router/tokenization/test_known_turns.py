"""A next turn that continues a known conversation has the tokens and hashes of its whole text."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.vllm.tokenizer import SpecialToken
from backends.vllm.unrenderable import Unrenderable
from router.config.model import Config
from router.residency.chain import SEED, extend_chain, pack_tokens
from router.residency.prompt import PromptSource
from router.tokenization import prompt_identifier as identity_module
from router.tokenization.body import intake
from router.tokenization.body.intake import MIN_BODY_BYTES, parse
from router.tokenization.body.parsed_body import CHAT_PATH
from router.tokenization.local import sources
from router.tokenization.local.local_tokenizer import LocalModel
from router.tokenization.local.segmenter import Segmenter
from router.tokenization.prompt_identifier import INLINE_NEW_BYTES, PromptIdentifier
from tests.router.tokenization.conftest import MODEL_DIR
from tests.support.examples import examples

LINE = "Please look at this function and say what is wrong with it. "
LONG = [{"role": ("user", "assistant")[n % 2], "content": f"{n}: {LINE * 30}"} for n in range(8)]
KINDS = ("shipped", "plain", "strips", "overlap", "mid_text", "two_passes", "single_word", "nfkc", "llama_legacy")


def known_turns(identity: PromptIdentifier, by: str = "turns") -> int:
    """Return how many times a known conversation was found, by its text or by the start of its body."""
    found = identity.statistics()[by]
    assert isinstance(found, dict)
    return int(found["hits"])


async def identified(identity: PromptIdentifier, body: dict[str, Any]) -> Any:
    parsed = parse(CHAT_PATH, json.dumps(body).encode(), identity.bodies)
    return await identity.identify(CHAT_PATH, parsed, None)


async def check(identity: PromptIdentifier, model: LocalModel, body: dict[str, Any]) -> None:
    prompt = await identified(identity, body)
    try:
        ids = model.renderer.encode(model.renderer.render(body), False)
    except Unrenderable:
        assert prompt is None or prompt.source is PromptSource.TEXT
        return
    assert prompt.source is PromptSource.RENDERED and prompt.tokens == len(ids)
    assert list(prompt.chain(16)) == list(extend_chain(SEED, pack_tokens(ids), 16))


def messages_of(model: LocalModel) -> st.SearchStrategy[dict[str, Any]]:
    tokens = [token.text for token in model.renderer.special][:8]
    pieces = [
        *tokens,
        *(token[:-1] for token in tokens),
        *(token[1:] for token in tokens),
        " ",
        "\n",
        "word",
        "日本",
        LINE * 3,
    ]
    content = st.lists(st.sampled_from(pieces), max_size=5).map("".join)
    plain = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": content})
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    calling = content.map(lambda text: {"role": "assistant", "content": text, "tool_calls": [call]})
    parts = content.map(lambda text: {"role": "user", "content": [{"type": "text", "text": text}]})
    others = st.sampled_from(
        [{"role": "developer", "content": "d"}, {"role": "user", "content": 1}, {"role": "user"}, 1]
    )
    return st.one_of(plain, plain, plain, calling, parts, others)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=examples(20), suppress_health_check=list(HealthCheck))
@given(data=st.data())
async def test_any_next_turn_has_the_hashes_of_its_whole_text(name, data, loaded, folders, monkeypatch) -> None:
    model = loaded[name]
    monkeypatch.setattr(sources, "read_files", lambda files: model)
    monkeypatch.setattr(identity_module, "MIN_BODY_BYTES", 0)
    monkeypatch.setattr(intake, "MIN_BODY_BYTES", 0)
    identity = PromptIdentifier(Config(model_dir=str(folders[name])), environ={})
    messages, seen = messages_of(model), [data.draw(st.lists(messages_of(model), min_size=3, max_size=5))]
    for _ in range(5):
        talk = data.draw(st.sampled_from(seen))
        talk = talk[: data.draw(st.integers(1, len(talk)))] + data.draw(st.lists(messages, max_size=3))
        seen.append(talk)
        fields = data.draw(st.sampled_from([{}, {}, {}, {"add_generation_prompt": False}, {"tools": []}]))
        await check(identity, model, {"model": "m", "messages": talk, **fields})
    await identity.aclose()


async def test_a_next_turn_continues_the_longest_known_conversation(identifier, loaded: dict[str, LocalModel]) -> None:
    identity, model = identifier(Config(model_dir=str(MODEL_DIR))), loaded["shipped"]
    assert len(json.dumps(LONG[:4])) < MIN_BODY_BYTES < len(json.dumps(LONG[:6]))
    await check(identity, model, {"model": "m", "messages": LONG[:4]})
    await check(identity, model, {"model": "m", "messages": LONG[:7]})
    assert known_turns(identity) == 0
    other = {"role": "user", "content": "Another question"}
    for found, messages in enumerate([LONG, [*LONG, other], [*LONG, other, *LONG], [*LONG[:6], other], LONG[:7]], 1):
        await check(identity, model, {"model": "m", "messages": messages, "max_tokens": 1})
        assert known_turns(identity) == found
    long_answer = {"role": "assistant", "content": LINE * (INLINE_NEW_BYTES // len(LINE) + 1)}
    await check(identity, model, {"model": "m", "messages": [*LONG, other, long_answer, other]})
    assert known_turns(identity) == 6
    await check(identity, model, {"model": "m", "messages": [*LONG, other, long_answer, other, other]})
    assert known_turns(identity) == 7
    assert known_turns(identity, by="bodies") == 6
    many = [*LONG, other, long_answer, other, other, *LONG]
    await check(identity, model, {"model": "m", "messages": many})
    assert known_turns(identity, by="bodies") == 6
    await check(identity, model, {"model": "m", "messages": [*many, other]})
    assert known_turns(identity, by="bodies") == 7


async def test_a_known_conversation_whose_start_was_dropped_is_learned_again(identifier) -> None:
    identity = identifier(Config(model_dir=str(MODEL_DIR)))
    body: dict[str, Any] = {"model": "m", "messages": LONG}
    assert await identity.identify(CHAT_PATH, parse(CHAT_PATH, json.dumps(body).encode()), None)  # teaches no start
    for _ in range(9):
        body["messages"] = [*body["messages"], *LONG[:2]]
        await identified(identity, body)
    assert known_turns(identity) == 9
    assert known_turns(identity, by="bodies") > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"chat_template_kwargs": {"x": 1}},
        {"add_generation_prompt": False},
        {"cache_salt": "s"},
        {"continue_final_message": True, "add_generation_prompt": False},
        {"messages": [{"role": "system", "content": "Other"}, *LONG[1:]]},
        {"messages": [*LONG[:3], {"role": "developer", "content": "d"}, *LONG[4:]]},
        {"truncate_prompt_tokens": 100_000},
    ],
)
async def test_another_text_is_no_known_conversation(identifier, fields: dict[str, Any]) -> None:
    identity = identifier(Config(model_dir=str(MODEL_DIR)))
    await identified(identity, {"model": "m", "messages": LONG})
    assert (await identified(identity, {"model": "m", "messages": LONG, **fields})).source is PromptSource.RENDERED
    assert known_turns(identity) == 0


async def test_a_conversation_without_its_prefix_is_no_longer_known(identifier, loaded: dict[str, LocalModel]) -> None:
    identity, model = identifier(Config(model_dir=str(MODEL_DIR))), loaded["shipped"]
    await check(identity, model, {"model": "m", "messages": LONG})
    prompt = await identified(identity, {"model": "m", "messages": [*LONG, LONG[0]]})
    assert known_turns(identity) == 1
    assert not prompt.chain(32)  # the text is not there, and the memo starts over with this size
    before = identity.statistics()["memo"]["new_tokens"]  # type: ignore[index]
    await check(identity, model, {"model": "m", "messages": [*LONG, *LONG[:2]]})
    assert identity.statistics()["memo"]["new_tokens"] - before > 2_000  # type: ignore[index]
    prompt = await identified(identity, {"model": "m", "messages": [*LONG, *LONG[:2], LONG[0]]})
    ids = model.renderer.encode(model.renderer.render({"messages": [*LONG, *LONG[:2], LONG[0]]}), False)
    assert list(prompt.chain(32)) == list(extend_chain(SEED, pack_tokens(ids), 32))


@pytest.mark.parametrize("strips", [False, True])
def test_no_turn_is_looked_up_where_a_boundary_depends_on_what_follows(strips: bool) -> None:
    token = SpecialToken(
        id=1, text="<|x|>", lstrip=strips, rstrip=False, single_word=False, normalized=False, special=True
    )
    segmenter = Segmenter([token], normalizes=False)
    assert segmenter.enabled
    assert segmenter.settles is not strips
    segmenter.disable()
    assert not segmenter.settles
