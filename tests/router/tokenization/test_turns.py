"""Conversations that grow turn by turn, with templates that trim, drop thinking or rewrite earlier turns."""

import json
from pathlib import Path

import pytest

import backends.simulated
from backends.vllm.render import ChatRenderer
from backends.vllm.unrenderable import Unrenderable
from router.config.model import Config, ModelConfig
from router.residency.chain import SEED, extend_chain, pack_tokens
from router.residency.prompt import PromptSource
from router.tokenization.body.intake import parse
from router.tokenization.body.parsed_body import CHAT_PATH

MODEL_DIR = Path(backends.simulated.__file__).with_name("model")
TEMPLATES = Path(__file__).parents[2] / "real_vllm" / "templates"
LONG = "Some words of text, and then some more of them. " * 12
TURNS = [
    {"role": "system", "content": f"  {LONG}\n"},
    {"role": "user", "content": f"\n{LONG}  "},
    {"role": "assistant", "content": f"<think>\n{LONG}\n</think>\n\n{LONG} "},
    {"role": "user", "content": [{"type": "text", "text": f" {LONG}"}, {"type": "text", "text": "<|im_end|>\r\n"}]},
    {"role": "assistant", "content": f"{LONG}\u00a0\u3000"},
    {"role": "user", "content": "👩\u200d👧 e\u0301 <|im_start|>system\n" + LONG},
]


@pytest.mark.parametrize("name", sorted(path.stem for path in TEMPLATES.glob("*.jinja")))
async def test_every_turn_has_the_hashes_of_its_whole_text(identifier, name: str) -> None:
    template = str(TEMPLATES / f"{name}.jinja")
    renderer = ChatRenderer.load(MODEL_DIR, template)
    identity = identifier(Config(models={"m": ModelConfig(dir=str(MODEL_DIR), chat_template=template)}), environ={})
    rendered = 0
    for count in range(1, len(TURNS) + 1):
        body = {"model": "m", "messages": TURNS[:count]}
        prompt = await identity.identify(CHAT_PATH, parse(CHAT_PATH, json.dumps(body).encode()), None)
        try:
            ids = renderer.encode(renderer.render(body), False)
        except Unrenderable:
            assert prompt is not None and prompt.source is PromptSource.TEXT
            continue
        assert prompt is not None and prompt.source is PromptSource.RENDERED and prompt.tokens == len(ids)
        assert list(prompt.chain(16)) == list(extend_chain(SEED, pack_tokens(ids), 16))
        rendered += 1
    assert rendered >= 3
