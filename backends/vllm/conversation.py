"""OpenAI chat messages and tools in the form in which a chat template receives them.

The module follows vLLM 0.33 between request validation and the template, as seen at its render endpoint. A message
keeps only the known fields, in a fixed order. In a tool call, a tool of a developer message and a text part, the known
fields come first, in the order of OpenAI's types. All other fields follow in their own order. The order is visible if a
template dumps an object as JSON. Tool call arguments become objects. Text parts become one string unless the template
loops over parts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import NoneType
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
_PART_FIELDS = frozenset(
    {
        "audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil", "image_url", "input_audio",
        "name", "prompt_cache_breakpoint", "refusal", "text", "thinking", "type", "uuid", "video_embeds", "video_url",
    }
)  # fmt: skip
"""Fields of content parts that vLLM knows but does not pass to a template that loops over parts."""
_BILLING_LINE = "x-anthropic-billing-header"
"""A line that changes with every request of one client; vLLM drops it from system messages."""


def conversation(messages: object, *, parts: bool, typed: bool = True) -> list[Message]:
    """Return messages for the template; with `parts`, content is a list of ``{"type": "text", "text": ...}``.

    With `typed`, messages pass through OpenAI's message types, which put a tool call's fields into their own order.
    vLLM does not do this for a Responses body.

    Raises:
        Unrenderable: images, audio or video in a message, or a shape that vLLM refuses.
    """
    if not isinstance(messages, list) or not messages:
        raise Unrenderable("messages is not a list with at least one message", refused=True)
    return [_message(message, parts, typed) for message in messages]


def _message(message: object, parts: bool, typed: bool) -> Message:
    if type(message) is not dict:
        raise Unrenderable("a message is not an object", refused=True)
    role = message.get("role")
    if not isinstance(role, str):
        raise Unrenderable("a message has no role", refused=True)
    seen: Message = {"role": role, "content": _content(message.get("content"), role, parts)}
    if role == "assistant":
        _add_assistant_fields(seen, message, typed)
    elif role == "tool" and "tool_call_id" in message:
        seen["tool_call_id"] = message["tool_call_id"]
    if isinstance(message.get("name"), str):
        seen["name"] = message["name"]
    if isinstance(message.get("task"), str):
        seen["task"] = message["task"]
    if role == "developer":
        seen["tools"] = _developer_tools(message.get("tools")) if typed else message.get("tools")
    return seen


def _content(content: object, role: str, parts: bool) -> str | list[dict[str, Any]]:
    if role == "system":
        content = _without_billing_line(content)
    if type(content) is str:
        return [{"type": "text", "text": content}] if parts and role != "tool" else content
    texts = _parts_with_text(content)
    if parts and role != "tool":
        return [{"type": "text", "text": text, **_unknown_fields(part)} for part, text in texts]
    if parts:
        return "\n".join([text for _, text in texts])
    return "\n".join([text for _, text in texts if text])


def _parts_with_text(content: object) -> list[tuple[object, str]]:
    if content is None:
        return []
    if not isinstance(content, list):
        raise Unrenderable("content is neither text nor a list of parts", refused=True)
    return [(part, text) for part in content if (text := _part_text(part)) is not None]


def _unknown_fields(part: object) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key not in _PART_FIELDS} if isinstance(part, dict) else {}


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
    """Return system content without the billing line, which is looked for in plain text and in parts of type "text"."""
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
            kept.append({**part, "text": rest} if isinstance(part, dict) else rest)
    return kept


def _add_assistant_fields(seen: Message, message: Mapping[str, Any], typed: bool) -> None:
    calls = message.get("tool_calls")
    if calls:
        seen["tool_calls"] = [_tool_call(call, typed) for call in calls]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is None:
        return
    if not isinstance(reasoning, str):
        raise Unrenderable("reasoning is not text")
    seen["reasoning"] = seen["reasoning_content"] = reasoning


def _tool_call(call: object, typed: bool) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or call.get("type", "function") != "function":
        raise Unrenderable("a tool call is not of type function", refused=True)
    seen: dict[str, Any] = {"id": call["id"]} if "id" in call else {}
    arguments = {"arguments": _arguments(function.get("arguments"))}
    name = {"name": function["name"]} if "name" in function else {}
    seen["function"] = _with_rest(arguments | name if typed else name | arguments, function)
    if "type" in call:
        seen["type"] = call["type"]
    return _with_rest(seen, call)


def _with_rest(known: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    return {**known, **{key: value for key, value in given.items() if key not in known}}


def _arguments(arguments: object) -> dict[str, Any]:
    """Return a tool call's arguments as an object; text that is not a JSON object counts as none."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return {}
    return arguments if isinstance(arguments, dict) else {}


def tools_for_template(tools: object) -> list[dict[str, Any]] | None:
    """Return the request's tools as vLLM's own types dump them.

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


_TOOL_TYPES: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "description": str,
    "parameters": dict,
    "strict": (bool, NoneType),
}


def _developer_tools(tools: object) -> object:
    """Return tools inside a developer message. Their fields have the order of OpenAI's types if all tools fit these
    types, else they are unchanged.
    """
    if not isinstance(tools, list) or not all(map(_is_typed_tool, tools)):
        return tools
    return [_developer_tool(tool) for tool in tools]


def _is_typed_tool(tool: object) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(function, dict):
        return False
    fits = all(isinstance(function[name], kind) for name, kind in _TOOL_TYPES.items() if name in function)
    return fits and "name" in function and tool.get("type") == "function"


def _developer_tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    seen = {name: function[name] for name in _TOOL_TYPES if name in function}
    return _with_rest({"function": _with_rest(seen, function), "type": "function"}, tool)


def without_developer_role(messages: list[Message]) -> list[Message]:
    """Turn developer messages into system messages, for a template without that role, and merge these at the front.

    Blank lines join the text of all system messages into one first message, if there is more than one of them or the
    only one is not first.
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
