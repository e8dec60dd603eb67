import json

import pytest

from router.config.model import Config
from router.residency.prompt import Prompt, PromptSource
from router.tokenization.body.intake import parse
from router.tokenization.body.parsed_body import CHAT_PATH, COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH
from router.tokenization.prompt_identifier import PromptIdentifier


@pytest.fixture
def identity(identifier):
    return identifier(Config())


def ask(identity: PromptIdentifier, body: dict, path: str = CHAT_PATH, adapter: str | None = None) -> Prompt:
    prompt = identity.identify_now(path, parse(path, json.dumps({"model": "m", **body}).encode()), adapter)
    assert prompt is not None and prompt.source is PromptSource.TEXT
    return prompt


def turns(count: int) -> dict:
    text = "A question about sockets, a longer one. " * 8
    return {"messages": [{"role": ("user", "assistant")[n % 2], "content": f"{n} {text}"} for n in range(count)]}


def test_each_turn_keeps_the_hashes_of_the_one_before(identity: PromptIdentifier) -> None:
    before: list[int] = []
    for count in range(1, 9):
        prompt = ask(identity, turns(count))
        chain = list(prompt.chain(16))
        assert chain[: len(before)] == before and len(chain) > len(before)
        assert len(chain) == prompt.tokens // 16
        before = chain


@pytest.mark.parametrize("reported", [0.5, 0.8, 1.3, 2.0])
def test_hashes_survive_a_learned_length(identity: PromptIdentifier, reported: float) -> None:
    first = ask(identity, turns(4))
    before = list(first.chain(16))
    for _ in range(60):
        prompt = ask(identity, turns(4))
        identity.observe_usage("m", prompt, round(first.tokens * reported))
    learned = ask(identity, turns(4))
    assert abs(learned.tokens / (first.tokens * reported) - 1) < 0.02
    after = list(learned.chain(16))
    shared = min(len(before), len(after))
    assert shared > 4 and after[:shared] == before[:shared]
    assert len(after) <= learned.tokens // 16
    assert list(ask(identity, turns(6)).chain(16))[:shared] == before[:shared]
    assert ask(identity, {**turns(4), "model": "other"}).tokens == first.tokens


def test_key_order_and_spacing_do_not_matter(identity: PromptIdentifier) -> None:
    one = ask(identity, {"messages": [{"role": "user", "content": "x" * 300, "name": "bob"}]})
    two = ask(identity, {"messages": [{"name": "bob", "content": "x" * 300, "role": "user"}]})
    assert list(one.chain(16)) == list(two.chain(16))
    other = ask(identity, {"messages": [{"role": "user", "content": "y" * 300}]})
    assert other.chain(16)[0] != one.chain(16)[0]


def test_cache_keys_change_text_hashes(identity: PromptIdentifier) -> None:
    chains = {
        ask(identity, {**turns(2), **({"cache_salt": salt} if salt else {})}, adapter=adapter).chain(16)[0]
        for adapter, salt in [(None, None), ("a", None), (None, "s"), ("a", "s")]
    }
    assert len(chains) == 4


def test_media_count_as_a_digest_not_as_their_bytes(identity: PromptIdentifier) -> None:
    def picture(url: str) -> dict:
        parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}]
        return {"messages": [{"role": "user", "content": parts}]}

    small, large = ask(identity, picture("data:,a")), ask(identity, picture("data:," + "b" * 100_000))
    assert abs(small.tokens - large.tokens) < 10 and 900 < small.tokens < 1200
    assert small.chain(16)[1] != large.chain(16)[1]


def test_tools_and_completions_are_part_of_the_text(identity: PromptIdentifier) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "d" * 200}}
    assert ask(identity, {**turns(1), "tools": [tool]}).chain(16)[0] != ask(identity, turns(1)).chain(16)[0]
    one = ask(identity, {"prompt": "word " * 100}, COMPLETIONS_PATH)
    two = ask(identity, {"prompt": ["word " * 100, "other " * 50]}, COMPLETIONS_PATH)
    assert one.tokens == 125 and two.tokens == 200 and two.multiple
    assert list(one.chain(16)) == list(two.chain(16))


def test_texts_of_other_apis_grow_turn_by_turn(identity: PromptIdentifier) -> None:
    words = "A question about sockets, a longer one. " * 8
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {"words": words}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": words}]}
    messages = [
        {"role": "user", "content": words},
        {"role": "assistant", "content": [{"type": "text", "text": words}, use]},
        {"role": "user", "content": [result, {"type": "image", "source": {"data": "a" * 9_000}}]},
    ]
    items = [
        {"role": "user", "content": words},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": words},
        {"type": "function_call_output", "call_id": "c", "output": words},
    ]
    prompt_request = [(MESSAGES_PATH, "system", "messages", messages), (RESPONSES_PATH, "instructions", "input", items)]
    for path, first, field, turns in prompt_request:
        before: list[int] = []
        for count in range(1, 4):
            prompt = ask(identity, {first: "S" * 99, field: turns[:count]}, path)
            assert list(prompt.chain(16))[: len(before)] == before
            before = list(prompt.chain(16))
        assert 200 < prompt.tokens < 1_500
        assert ask(identity, {first: "T" * 99, field: turns}, path).chain(16)[0] != before[0]
    as_chat = ask(identity, {"messages": [{"role": "user", "content": words}]})
    assert ask(identity, {"input": words}, RESPONSES_PATH).chain(16)[0] == as_chat.chain(16)[0]


def test_reports_on_exact_or_several_prompts_teach_nothing(identity: PromptIdentifier) -> None:
    identity.observe_usage("m", Prompt(5, PromptSource.IDS, lambda _: []), 10)
    identity.observe_usage("m", ask(identity, {"prompt": ["a", "b"]}, COMPLETIONS_PATH), 10)
    identity.observe_usage("m", ask(identity, {"prompt": "a"}, COMPLETIONS_PATH), 0)
    assert identity.statistics()["bytes_per_token"] == {}
