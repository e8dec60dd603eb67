"""Chat templates with the features of the common families. The gateway's token ids are compared with vLLM's render
endpoint.

The templates are written here; `templates/bodies.jsonl` has one request per line. vLLM takes a template from the
request, so one server is enough: ``vllm launch render``, which has the server's whole path up to the engine.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from backends.vllm.render import ChatRenderer, Unrenderable
from router.tokenization.body.intake import parse
from router.tokenization.body.parsed_body import CHAT_PATH
from router.tokenization.request import adds_special_tokens, render_chat

TEMPLATES = Path(__file__).with_name("templates")
NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
BODIES = {body.pop("name"): body for body in map(json.loads, (TEMPLATES / "bodies.jsonl").open(encoding="utf-8"))}

NOT_RENDERED = {
    "image",
    "kwargs template",
    "kwargs tools",
    "kwargs tools both",
    "reasoning number",
    "tool reference",
}
"""Bodies that vLLM renders and the gateway does not. Their prompts are identified by text or a worker's /tokenize."""
REFUSED_BY_VLLM_ALONE = {
    "call arguments missing", "call arguments null", "call arguments object", "call idless", "call nameless",
    "call typeless", "developer null", "documents number", "effort wrong", "kwargs self", "name null", "name number",
    "null system", "null user", "other parts", "part no text", "string parts", "tool nameless", "tool null",
    "tools empty",
}  # fmt: skip
"""Bodies that the gateway renders and vLLM answers with 400. This is harmless: the worker refuses the placed
request.
"""
REFUSED_WITH = {("instructions", "system only")}
"""Bodies that only one template refuses, because it leaves no text."""


@pytest.fixture(scope="module")
def render(trusting_renderer):
    """Return a function from a body to vLLM's token ids, or its status and message if it refuses."""
    fresh = httpx.Limits(max_keepalive_connections=0)  # vLLM closes a connection after a 500
    with httpx.Client(base_url=trusting_renderer, timeout=60, limits=fresh) as client:

        def ask(body: dict) -> list[int] | tuple[int, str]:
            answer = client.post("/v1/chat/completions/render", json={"model": "m", **body})
            if answer.status_code != 200:
                return answer.status_code, answer.json()["error"]["message"]
            return answer.json()["token_ids"]

        yield ask


def ours(renderer: ChatRenderer, body: dict) -> list[int] | Unrenderable:
    fields = parse(CHAT_PATH, json.dumps(body).encode()).fields
    try:
        return renderer.encode(render_chat(CHAT_PATH, fields, renderer), adds_special_tokens(CHAT_PATH, fields))
    except Unrenderable as error:
        return error


@pytest.mark.parametrize("name", NAMES)
def test_template_ids_equal_vllms(render, named_model_dir, name: str) -> None:
    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    renderer = ChatRenderer.load(named_model_dir, chat_template=source)
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda body: render({**body, "chat_template": source}), BODIES.values())
        theirs = dict(zip(BODIES, answers, strict=True))
    compared, not_rendered, refused = 0, set(), set()
    for case, body in BODIES.items():
        expected, found = theirs[case], ours(renderer, body)
        if isinstance(expected, list) and isinstance(found, list):
            assert found == expected, f"{case}:\n{renderer.decode(expected)!r}\n{renderer.decode(found)!r}"
            compared += 1
        elif isinstance(expected, list):
            assert not found.refused, f"{case}: vLLM renders it, we say that it will refuse: {found.reason}"
            not_rendered.add(case)
        elif isinstance(found, list):
            refused.add(case)
    assert not_rendered <= NOT_RENDERED
    assert refused - {case for template, case in REFUSED_WITH if template == name} <= REFUSED_BY_VLLM_ALONE
    assert compared > len(BODIES) / 2


def test_every_listed_exception_is_needed(render, named_model_dir) -> None:
    source = (TEMPLATES / "dump.jinja").read_text(encoding="utf-8")
    renderer = ChatRenderer.load(named_model_dir, chat_template=source)
    for case in NOT_RENDERED:
        assert isinstance(ours(renderer, BODIES[case]), Unrenderable), case
    for case in REFUSED_BY_VLLM_ALONE:
        assert isinstance(render({**BODIES[case], "chat_template": source}), tuple), case
        assert isinstance(ours(renderer, BODIES[case]), list), case


def test_named_templates_and_content_formats_are_found_as_vllm_finds_them(render, named_model_dir, tmp_path) -> None:
    """The same template text gives the same ids as the model's own template and as the request's."""
    body = BODIES["parts"]
    for name in ("chatml", "parts"):
        source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
        for file in named_model_dir.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        (tmp_path / "chat_template.jinja").write_text(source)
        assert ours(ChatRenderer.load(tmp_path), body) == render({**body, "chat_template": source})
