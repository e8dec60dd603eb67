"""Anthropic Messages bodies as the chat bodies that vLLM makes of them.

The module follows the observed behaviour of vLLM 0.33 (``entrypoints/anthropic``). The system prompt becomes one first
message. Text blocks stay, thinking becomes reasoning, and tool_use becomes a tool call. A user's tool_result becomes a
separate message before the text of the same message. Empty text, redacted thinking and every field not named here are
dropped. Two details depend on the model's chat template, see `TemplateHabits`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from backends.vllm.unrenderable import Unrenderable

THINKING_EFFORTS = ("low", "medium", "high", "xhigh", "max")
"""The efforts that `output_config` may name. vLLM compares their renderings to learn the effect of "none"."""

_BILLING_LINE = "x-anthropic-billing-header"
_NO_CONTENT_BLOCKS = frozenset({"redacted_thinking", "tool_reference"})


class TemplateHabits(Protocol):
    """Properties of a model's chat template that vLLM determines when it serves this API."""

    @property
    def merges_late_system(self) -> bool:
        """Whether later system messages go into the first one, since the template would refuse them."""

    @property
    def disabled_effort(self) -> str:
        """The reasoning effort that stands for disabled thinking."""


@dataclass(slots=True)
class _OpenMessage:
    """The message made of one message's blocks; `before` are messages that precede it."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    before: list[dict[str, Any]] = field(default_factory=list)


def chat_of_messages(body: Mapping[str, Any], habits: TemplateHabits) -> dict[str, Any]:
    """Return the chat completions body with the same prompt. Pure: `body` is not changed or shared with the result.

    Raises:
        Unrenderable: pictures, a later change of tools, or a shape that vLLM refuses.
    """
    messages = _listed(body.get("messages"), "messages")
    merge = any(_role(message) == "system" for message in messages) and habits.merges_late_system
    chat: dict[str, Any] = {"messages": [*_system(body, messages if merge else []), *_turns(messages, merge)]}
    if body.get("tools") is not None:
        chat["tools"] = [_tool(tool) for tool in _listed(body["tools"], "tools")]
    effort = _effort(body, habits)
    if effort is not None:
        chat["reasoning_effort"] = effort
    if body.get("chat_template_kwargs") is not None:
        chat["chat_template_kwargs"] = body["chat_template_kwargs"]
    return chat


def refuses_late_system(template: str) -> bool:
    """Return whether vLLM assumes that `template` requires its system message first.

    vLLM renders four plain messages without the names that chat templates are given. Any use of ``raise_exception`` or
    ``strftime_now`` on that path counts as a refusal too.
    """
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    turns = [{"role": role, "content": "t"} for role in ("system", "user") * 2]
    try:
        environment.from_string(template).render(messages=turns, add_generation_prompt=False)
    except TemplateError:
        return True
    except Exception as error:  # vLLM does not start then; the error does not show if order matters
        raise Unrenderable(f"chat template: {type(error).__name__}: {error}") from error
    return False


def _system(body: Mapping[str, Any], merged: list[Any]) -> list[dict[str, Any]]:
    """Return the first message: the system prompt, and the text of the system messages among `merged`."""
    system = body.get("system")
    texts = [system] if isinstance(system, str) else _system_texts(_listed(system or [], "system"))
    texts += [_system_text(message) for message in merged if message["role"] == "system"]
    text = "".join(texts)
    return [{"role": "system", "content": text}] if text else []


def _system_text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return "" if content.startswith(_BILLING_LINE) else content
    return "".join(_system_texts(_listed(content, "content")))


def _system_texts(blocks: list[Any]) -> list[str]:
    texts = [_text(block, "text") or "" for block in blocks if _kind(block) == "text"]
    if any(_kind(block) in ("tool_addition", "tool_removal") for block in blocks):
        raise Unrenderable("tools are added or removed in mid-conversation")
    return [text for text in texts if not text.startswith(_BILLING_LINE)]


def _turns(messages: list[Any], merged: bool) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    for message in messages:
        role = _role(message)
        if role == "system":
            text = "" if merged else _system_text(message)
            turns += [{"role": role, "content": text}] if text else []
        elif isinstance(message.get("content"), str):
            turns.append({"role": role, "content": message["content"]})
        else:
            turns += _turn(role, _listed(message.get("content"), "content"))
    return turns


def _turn(role: str, blocks: list[Any]) -> list[dict[str, Any]]:
    """Return a message given as blocks. Tool results come first; a user's message of tool results only is dropped."""
    turn = _OpenMessage()
    for block in blocks:
        _add_block(turn, role, block)
    message: dict[str, Any] = {"role": role}
    if turn.thoughts:
        message["reasoning"] = "".join(turn.thoughts)
    if turn.calls:
        message["tool_calls"] = turn.calls
    if turn.texts:
        several = [{"type": "text", "text": text} for text in turn.texts]
        message["content"] = turn.texts[0] if len(turn.texts) == 1 else several
    elif role == "user":
        return turn.before
    return [*turn.before, message]


def _add_block(turn: _OpenMessage, role: str, block: Any) -> None:
    kind = _kind(block)
    if kind == "text":
        text = _text(block, "text")
        turn.texts += [text] if text else []
    elif kind == "thinking":
        thought = _text(block, "thinking")
        turn.thoughts += [thought] if thought is not None else []
    elif kind == "tool_use":
        turn.calls.append(_tool_call(block))
    elif kind == "tool_result" and role == "user":
        turn.before.append(_tool_result(block))
    elif kind == "tool_result":
        content = block.get("content")
        turn.texts.append(f"Tool result: {content if content else ''}")
    elif kind == "image" and not block.get("source"):
        return
    elif kind not in _NO_CONTENT_BLOCKS:
        raise Unrenderable(f"a content block of type {kind!r} is not text")


def _tool_call(block: Mapping[str, Any]) -> dict[str, Any]:
    if not block.get("id"):
        raise Unrenderable("a tool_use block has no id, so the worker makes one up")
    given = block.get("input")
    if given is not None and not isinstance(given, dict):
        raise Unrenderable("the input of a tool_use block is not an object", refused=True)
    function = {"name": block.get("name") or "", "arguments": json.dumps(given or {})}
    return {"id": block["id"], "type": "function", "function": function}


def _tool_result(block: Mapping[str, Any]) -> dict[str, Any]:
    content = block.get("content")
    if isinstance(content, list):
        if any(_kind(item) in ("image", "tool_reference") for item in content):
            raise Unrenderable("a tool result holds more than text")
        content = "\n".join([_text(item, "text", "") or "" for item in content if _kind(item) == "text"])
    elif content is not None and not isinstance(content, str):
        raise Unrenderable("the content of a tool result is neither text nor a list of blocks", refused=True)
    return {"role": "tool", "tool_call_id": block.get("tool_use_id") or "", "content": content or ""}


def _tool(tool: Any) -> dict[str, Any]:
    schema = tool.get("input_schema") if isinstance(tool, dict) else None
    if not isinstance(schema, dict):
        raise Unrenderable("a tool has no input_schema", refused=True)
    passed = {name: tool.get(name) for name in ("name", "description", "strict", "defer_loading")}
    parameters = schema if "type" in schema else {**schema, "type": "object"}
    return {"type": "function", "function": {**passed, "parameters": parameters}}


def _effort(body: Mapping[str, Any], habits: TemplateHabits) -> str | None:
    """Return the reasoning effort that `thinking` or `output_config` asks for, in vLLM's words."""
    thinking, output = body.get("thinking"), body.get("output_config")
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        return habits.disabled_effort
    effort = output.get("effort") if isinstance(output, dict) else None
    if effort is not None and effort not in THINKING_EFFORTS:
        raise Unrenderable(f"no such effort: {effort!r}", refused=True)
    return effort


def _role(message: Any) -> str:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ("user", "assistant", "system"):
        raise Unrenderable(f"a message has the role {role!r}", refused=True)
    return str(role)


def _kind(block: Any) -> object:
    if not isinstance(block, dict):
        raise Unrenderable("a content block is not an object", refused=True)
    return block.get("type")


def _text(block: Mapping[str, Any], name: str, absent: str | None = None) -> str | None:
    text = block.get(name, absent)
    if text is not None and not isinstance(text, str):
        raise Unrenderable(f"the {name} of a content block is not text", refused=True)
    return text


def _listed(value: object, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise Unrenderable(f"{name} is not a list", refused=True)
    return value
