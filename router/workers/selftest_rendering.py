"""Compare the gateway's rendering of chats with the worker's.

The worker's /tokenize uses its chat template, template variables and content format (``--chat-template``,
``--default-chat-template-kwargs``, ``--chat-template-content-format``) and its own tokenizer. The gateway's token ids
must be the same as the worker's.

The comparison cannot see ``--reasoning-effort-map`` and ``--exclude-tools-when-tool-choice-none``, which affect only
requests with those fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from backends.foreign_json import read_json
from backends.vllm.control import ProbeError, RefusedError, WorkerClient
from backends.worker import Endpoint
from router.residency.chain import SEED, TOKEN_BYTES, extend_chain, pack_tokens
from router.residency.prompt import Prompt, PromptSource
from router.tokenization.body.intake import parse
from router.tokenization.body.parsed_body import CHAT_PATH
from router.tokenization.prompt_identifier import PromptIdentifier

PATH = "/tokenize"
ANSWER_S = 5.0
MAX_ANSWER_BYTES = 65_536
"""The chats of the test have some hundred tokens."""

_QUESTION = "Which of these rivers is the longest, and through how many countries does it run? " * 4
_ANSWER = "That is hard to say: it depends on where one takes its source to be. " * 4
_TOOL = {
    "type": "function",
    "function": {
        "name": "measure_river",
        "description": "Length of a river.",
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
}
_CALL = {"id": "call00001", "type": "function", "function": {"name": "measure_river", "arguments": '{"name": "Nile"}'}}


def _message(role: str, content: object) -> dict[str, object]:
    return {"role": role, "content": content}


_USER_MESSAGE = _message("user", _QUESTION)
CHATS: dict[str, dict[str, object]] = {
    "a question": {"messages": [_USER_MESSAGE]},
    "a conversation": {
        "messages": [
            _message("system", " Be brief.\n"),
            _USER_MESSAGE,
            _message("assistant", f"<think>\nRivers.\n</think>\n\n{_ANSWER}"),
            _message("user", " And the second?  "),
        ]
    },
    "content in parts": {
        "messages": [_message("user", [{"type": "text", "text": "Tell me."}, {"type": "text", "text": _QUESTION}])]
    },
    "a tool call": {
        "messages": [
            _USER_MESSAGE,
            {**_message("assistant", ""), "tool_calls": [_CALL]},
            {**_message("tool", "6650 km"), "tool_call_id": "call00001"},
        ],
        "tools": [_TOOL],
    },
}
"""The chats to compare, by name. A chat whose system message or tool the template does not support is skipped.

Long text comes last, because after the last full block only the length is compared.
"""
ALWAYS = ("a question", "a conversation")
"""The plain chats. If a worker renders them differently, none of its chats has the blocks that the gateway expects."""


ALIKE = "alike"


@dataclass(frozen=True, slots=True)
class RenderingComparison:
    """The result of the comparison.

    `wrong` describes the first chat that differs. `why_not` gives the reason if no chat was compared. `basic` is True
    if plain chats differ too. `chats` gives the result by chat, for people.
    """

    compared: int = 0
    wrong: str | None = None
    basic: bool = False
    why_not: str | None = None
    chats: Mapping[str, str] = field(default_factory=dict, compare=False)


class _Tokens(msgspec.Struct):
    tokens: list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 8 * TOKEN_BYTES)]]


async def compare_rendering(
    client: WorkerClient, identity: PromptIdentifier, endpoint: Endpoint, model: str, block_tokens: int
) -> RenderingComparison:
    """Compare all of `CHATS`. Never raises."""
    compared, wrong, chats = 0, {}, {}
    for name, chat in CHATS.items():
        body = msgspec.json.encode({"model": model, **chat})
        prompt = await identity.identify(CHAT_PATH, parse(CHAT_PATH, body), None)
        if prompt is None or prompt.source is not PromptSource.RENDERED:
            chats[name] = "not compared: the gateway cannot render it"
            continue
        try:
            theirs = await _ids(client, endpoint, body)
        except RefusedError as error:
            chats[name] = f"not compared: {error.reason}"
            if error.status in (400, 422):
                continue
            return RenderingComparison(why_not=error.reason, chats=chats)
        except ProbeError as error:
            return RenderingComparison(why_not=error.reason, chats={**chats, name: f"not compared: {error.reason}"})
        compared += 1
        chats[name] = ALIKE
        if difference := _difference(prompt, theirs, block_tokens):
            wrong[name] = chats[name] = difference
    first = next((f"{name}: {difference}" for name, difference in wrong.items()), None)
    basic = any(name in wrong for name in ALWAYS)
    why_not = None if compared else "no chat of the test is rendered on both sides"
    return RenderingComparison(compared, first, basic, why_not, chats)


async def _ids(client: WorkerClient, endpoint: Endpoint, body: bytes) -> list[int]:
    answer = await client.post_json(endpoint, PATH, body, timeout_s=ANSWER_S, max_bytes=MAX_ANSWER_BYTES)
    try:
        return read_json(answer, _Tokens).tokens
    except (msgspec.DecodeError, RecursionError):
        raise ProbeError(f"{PATH} did not answer with token ids") from None


def _difference(prompt: Prompt, theirs: list[int], block_tokens: int) -> str | None:
    if prompt.tokens != len(theirs):
        return f"{prompt.tokens} tokens here, {len(theirs)} on the worker"
    ours = list(prompt.chain(block_tokens))
    chain = list(extend_chain(SEED, pack_tokens(theirs), block_tokens))
    if ours == chain:
        return None
    equal = next((place for place, (mine, other) in enumerate(zip(ours, chain, strict=True)) if mine != other), 0)
    return f"ids differ from block {equal} on"
