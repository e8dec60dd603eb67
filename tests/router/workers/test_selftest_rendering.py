import json

import httpx
import pytest

from backends.simulated.settings import shipped_model_dir
from backends.vllm.render import ChatRenderer
from backends.vllm.unrenderable import Unrenderable
from router.config.model import Config, ModelConfig
from router.residency.prompt import Prompt, PromptSource
from router.tokenization.prompt_identifier import PromptIdentifier
from router.workers.selftest_rendering import CHATS, compare_rendering

TEMPLATE = """\
{%- for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' }}
{%- if m.content is string %}{{ m.content }}{% else %}{{ m.content | map(attribute='text') | join(separator or ';') }}
{%- endif %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"""


def answered(status, content=b""):
    return httpx.Response(status, content=content)


class Worker:
    """Answers /tokenize as vLLM does; `kwargs` are its default template variables, `alter` what it makes of ids."""

    def __init__(self, template=TEMPLATE, kwargs=None, alter=lambda body, ids: ids, answer=None):
        self.renderer = ChatRenderer.load(shipped_model_dir(), chat_template=template)
        self.kwargs, self.alter, self.answer = kwargs or {}, alter, answer
        self.asked = 0

    def __call__(self, request):
        self.asked += 1
        assert request.url.path == "/tokenize"
        if self.answer is not None:
            return answered(*self.answer)
        body = json.loads(request.content)
        assert body.pop("model") == "m"
        try:
            text = self.renderer.render({**body, "chat_template_kwargs": self.kwargs})
        except Unrenderable:
            return answered(400)
        ids = self.alter(body, self.renderer.encode(text, False))
        return answered(200, json.dumps({"tokens": ids, "count": len(ids)}).encode())


async def compare(wire, worker, identity=None):
    own = identity or PromptIdentifier(
        Config(models={"m": ModelConfig(dir=str(shipped_model_dir()), chat_template=TEMPLATE)}), environ={}
    )
    async with wire.answering(worker) as (client, endpoint):
        found = await compare_rendering(client, own, endpoint, "m", 16)
    if identity is None:
        await own.aclose()
    return found


async def test_equal_renderings_are_counted(wire):
    worker = Worker()
    found = await compare(wire, worker)
    assert (found.compared, found.wrong, found.basic, found.why_not) == (len(CHATS), None, False, None)
    assert worker.asked == len(CHATS)


def moved(body, ids):
    return [*ids[:40], ids[40] + 1, *ids[41:]]


def parts_joined(body, ids):
    return [*ids, 1] if isinstance(body["messages"][0]["content"], list) else ids


def told_of_tools(body, ids):
    return [*ids, 5] if "tools" in body else ids


@pytest.mark.parametrize(
    ("worker", "words", "basic"),
    [
        (Worker(TEMPLATE.replace("\\n", " ")), "a question: ", True),
        (Worker(kwargs={"enable_thinking": False}), "a question: ", True),
        (Worker(alter=moved), "a question: ids differ from block 2 on", True),
        (Worker(TEMPLATE.replace("m.content }}", "m.content | trim }}")), "tokens here", True),
        (Worker(alter=parts_joined), "content in parts: ", False),
        (Worker(alter=told_of_tools), "a tool call: ", False),
    ],
)
async def test_a_different_rendering_is_named(wire, worker, words, basic):
    found = await compare(wire, worker)
    assert words in (found.wrong or "") and found.basic is basic and found.compared == len(CHATS)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((404,), "answered 404"),
        ((500,), "answered 500"),
        ((400,), "no chat of the test"),
        ((200, b"<html>"), "did not answer with token ids"),
    ],
)
async def test_an_unusable_tokenize_answer_gives_a_reason(wire, answer, words):
    found = await compare(wire, Worker(answer=answer))
    assert (found.compared, found.wrong, found.basic) == (0, None, False) and words in (found.why_not or "")


@pytest.mark.parametrize("wrong", [-1, 1 << 32])
async def test_invalid_token_ids_are_not_compared(wire, wrong):
    found = await compare(wire, Worker(alter=lambda body, ids: [wrong, *ids[1:]]))
    assert found.compared == 0 and "did not answer with token ids" in (found.why_not or "")


async def test_a_chat_that_the_template_refuses_is_skipped(wire):
    picky = TEMPLATE.replace(
        "{%- for m in messages %}", "{%- for m in messages %}{% if m.role == 'system' %}{{ 1 / 0 }}{% endif %}"
    )
    found = await compare(wire, Worker(picky))
    assert (found.compared, found.wrong) == (len(CHATS) - 1, None)


async def test_remote_token_ids_are_not_compared(wire):
    class Asking:
        async def identify(self, path, parsed, adapter):
            return Prompt(40, PromptSource.WORKER, lambda block: ())

    worker = Worker()
    found = await compare(wire, worker, Asking())
    assert found.why_not is not None and worker.asked == 0
