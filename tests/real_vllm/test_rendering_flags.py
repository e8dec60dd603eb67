"""Start-up flags of a worker that change its prompts. The self-test detects some of them at /tokenize, and others
not.
"""

import json
import shutil
from urllib.parse import urlsplit

import httpx
import pytest
from tokenizers import Tokenizer, models, normalizers

from backends.vllm.control import WorkerClient
from backends.worker import Endpoint
from router.config.model import Config, ModelConfig
from router.tokenization.prompt_identifier import PromptIdentifier
from router.workers.selftest_rendering import CHATS, RenderingComparison, compare_rendering

TEMPLATE = """\
{%- for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' }}
{%- if m.content is string %}{{ m.content }}{% else %}{{ m.content | map(attribute='text') | join(';') }}{% endif %}
{{- '<|im_end|>\\n' }}{% endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- if reasoning_effort %}{{ reasoning_effort }}{% endif %}"""


@pytest.fixture
def folder(named_model_dir, tmp_path):
    made = tmp_path / "model"
    shutil.copytree(named_model_dir, made)
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


async def compare(url: str, folder) -> RenderingComparison:
    identity = PromptIdentifier(Config(models={"m": ModelConfig(dir=str(folder))}), environ={})
    place = urlsplit(url)
    async with WorkerClient() as client:
        endpoint = Endpoint("http", place.hostname or "", place.port or 0)
        found = await compare_rendering(client, identity, endpoint, "m", 16)
    await identity.aclose()
    return found


def ids(url: str, **fields) -> list[int]:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    answer = httpx.post(f"{url}/v1/chat/completions/render", json=body, timeout=30)
    return answer.raise_for_status().json()["token_ids"]


async def test_flags_for_some_requests_only_are_not_detected(launched, folder) -> None:
    """Not detected: /tokenize has neither field. Without these fields in requests, prompts are the same."""
    efforts = ("--reasoning-effort-map", '{"high": "max"}')
    url = launched(folder, *efforts, "--exclude-tools-when-tool-choice-none")
    assert await compare(url, folder) == RenderingComparison(compared=len(CHATS))
    assert ids(url, reasoning_effort="high") == ids(url, reasoning_effort="max") != ids(url)
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert ids(url, tools=tools, tool_choice="none") == ids(url)


@pytest.mark.parametrize(
    ("flags", "words", "basic"),
    [
        (("--default-chat-template-kwargs", '{"enable_thinking": false}'), "a question: ", True),
        (("--chat-template", TEMPLATE.replace("im_start", "im_end")), "a question: ids differ from block 0 on", True),
        (("--chat-template-content-format", "openai"), "content in parts: ", False),
    ],
)
async def test_rendering_flags_are_detected(launched, folder, flags: tuple[str, ...], words: str, basic: bool) -> None:
    found = await compare(launched(folder, *flags), folder)
    assert found.compared == len(CHATS) and words in (found.wrong or "") and found.basic is basic


async def test_a_class_with_its_own_tokenizer_is_detected(launched, folder) -> None:
    """With a folder of the Llama-2 era, the worker's tokenizer differs from the file, and the gateway's equals the
    worker's.
    """
    pieces = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    tokenizer = Tokenizer(models.BPE({piece: place for place, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.add_special_tokens(pieces[:5])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer", "legacy": False}))
    url = launched(folder)
    assert await compare(url, folder) == RenderingComparison(compared=len(CHATS))
    (folder / "tokenizer_config.json").write_text("{}")
    found = await compare(url, folder)
    assert found.basic and found.wrong is not None, "the file itself gives other ids"
