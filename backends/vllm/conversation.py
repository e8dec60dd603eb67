"""OpenAI chat messages and tools as a chat template gets to see them.

What vLLM 0.33 does between request validation and the template, as observed in ``renderers/chat_utils`` and in
pydantic's treatment of the OpenAI message types: unknown fields vanish, fields come in the order of the types (it
shows wherever a template dumps an object as JSON), tool call arguments become objects, text parts become one string
unless the template walks over parts itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from backends.vllm.unrenderable import Unrenderable

Message = dict[str, Any]

_TEXT_FIELD = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_BILLING_LINE = "x-anthropic-billing-header"
"""A line that changes with every request of one client; vLLM drops it from system messages."""


def conversation(messages: object, *, parts: bool) -> list[Message]:
    """Messages for the template; with `parts` content is a list of ``{"type": "text", "text": ...}``.

    Raises:
        Unrenderable: images, audio or video in a message, or a shape that vLLM refuses.
    """
    if not isinstance(messages, list) or not messages:
        raise Unrenderable("messages is not a list with at least one message", refused=True)
    return [_message(message, parts) for message in messages]


def _message(message: object, parts: bool) -> Message:
    if type(message) is not dict:
        raise Unrenderable("a message is not an object", refused=True)
    role = message.get("role")
    if not isinstance(role, str):
        raise Unrenderable("a message has no role", refused=True)
    seen: Message = {"role": role, "content": _content(message.get("content"), role, parts)}
    # With content given as null only OpenAI's own message types fit, and these know no reasoning and no task.
    extended = message.get("content", "") is not None
    if role == "assistant":
        _add_assistant_fields(seen, message, extended)
    elif role == "tool" and "tool_call_id" in message:
        seen["tool_call_id"] = message["tool_call_id"]
    if isinstance(message.get("name"), str):
        seen["name"] = message["name"]
    if extended and isinstance(message.get("task"), str):
        seen["task"] = message["task"]
    if role == "developer" and message.get("tools") is not None:
        seen["tools"] = [_developer_tool(tool) for tool in message["tools"]]
    return seen


def _content(content: object, role: str, parts: bool) -> str | list[dict[str, str]]:
    if role == "system":
        content = _without_billing_line(content)
    if type(content) is str:
        return [{"type": "text", "text": content}] if parts and role != "tool" else content
    texts = _texts(content)
    if parts and role != "tool":
        return [{"type": "text", "text": text} for text in texts]
    if parts:
        return "\n".join(texts)
    return "\n".join([text for text in texts if text])


def _texts(content: object) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise Unrenderable("content is neither text nor a list of parts", refused=True)
    return [text for text in map(_part_text, content) if text is not None]


def _part_text(part: object) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise Unrenderable("a content part is neither text nor an object", refused=True)
    kind = part.get("type")
    field = _TEXT_FIELD.get(kind) if isinstance(kind, str) else None
    if field is None or part.get("uuid") is not None:
        raise Unrenderable(f"a content part of type {kind!r} is not text")
    text = part.get(field)
    if text is None and kind in ("text", "refusal"):
        return None
    if not isinstance(text, str):
        raise Unrenderable(f"a content part of type {kind!r} holds no text", refused=True)
    return text


def _without_billing_line(content: object) -> object:
    """System content less that line; only of plain text and of parts of type "text"."""
    if isinstance(content, str) and not content.startswith(_BILLING_LINE):
        return content
    if not isinstance(content, (str, list)):
        return content
    kept = []
    for part in [content] if isinstance(content, str) else content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
        if not isinstance(text, str) or not text.startswith(_BILLING_LINE):
            kept.append(part)
        elif rest := text.partition("\n")[2]:
            kept.append(rest)
    return kept


def _add_assistant_fields(seen: Message, message: Mapping[str, Any], extended: bool) -> None:
    calls = message.get("tool_calls")
    if calls:
        seen["tool_calls"] = [_tool_call(call) for call in calls]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is None or not extended:
        return
    if not isinstance(reasoning, str):
        raise Unrenderable("reasoning is not text")
    seen["reasoning"] = seen["reasoning_content"] = reasoning


def _tool_call(call: object) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or call.get("type", "function") != "function":
        raise Unrenderable("a tool call is not of type function", refused=True)
    seen: dict[str, Any] = {"id": call["id"]} if "id" in call else {}
    seen["function"] = {"arguments": _arguments(function.get("arguments"))}
    if "name" in function:
        seen["function"]["name"] = function["name"]
    if "type" in call:
        seen["type"] = call["type"]
    return seen


def _arguments(arguments: object) -> dict[str, Any]:
    """A tool call's arguments as an object; text that is no JSON object counts as none."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return {}
    return arguments if isinstance(arguments, dict) else {}


def tools_for_template(tools: object) -> list[dict[str, Any]] | None:
    """The request's tools as vLLM's own types dump them.

    Raises:
        Unrenderable: a shape that vLLM refuses.
    """
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise Unrenderable("tools is not a list", refused=True)
    return [_tool(tool) for tool in tools]


def _tool(tool: object) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(function, dict) or tool.get("type", "function") != "function":
        raise Unrenderable("a tool is not of type function", refused=True)
    seen = {field: function.get(field) for field in ("name", "description", "parameters")}
    if function.get("strict") is not None:
        seen["strict"] = function["strict"]
    defer = tool.get("defer_loading")
    inner_defer = function.get("defer_loading")
    if inner_defer is not None or defer is not None:
        seen["defer_loading"] = inner_defer if inner_defer is not None else defer
    dumped: dict[str, Any] = {"type": "function", "function": seen}
    if defer is not None:
        dumped["defer_loading"] = defer
    return dumped


def _developer_tool(tool: object) -> dict[str, Any]:
    """A tool inside a developer message: the same fields in another order, none of them filled in."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(function, dict):
        raise Unrenderable("a tool is not of type function", refused=True)
    fields = ("name", "description", "parameters", "strict")
    return {"function": {field: function[field] for field in fields if field in function}, "type": tool.get("type")}


def without_developer_role(messages: list[Message]) -> list[Message]:
    """For a template that does not know the role: developer messages become system ones, merged at the front.

    The text of all system messages is joined by blank lines into one first message where there is more than one of
    them, or the only one is not first.
    """
    renamed = [_as_system(message) if message["role"] == "developer" else message for message in messages]
    places = [index for index, message in enumerate(renamed) if message["role"] == "system"]
    if places == [0]:
        return renamed
    texts = [_joined(renamed[index]["content"]) for index in places]
    merged: Message = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in renamed if message["role"] != "system")]


def _as_system(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "tools"} | {"role": "system"}


def _joined(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
