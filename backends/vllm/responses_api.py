"""OpenAI Responses bodies as the chat bodies that vLLM makes of them.

The module follows the observed behaviour of vLLM 0.33 (``entrypoints/openai/responses``) for models that it renders by
a chat template. The instructions become a system message. Items of one assistant turn (reasoning, text, calls) are
merged into one message as long as the message lacks the item's field. Only the first part of an item counts. Unfinished
assistant items at the end are left open. Unlike a chat, the rendered text gets the tokenizer's own first tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from backends.vllm.unrenderable import Unrenderable

_UNFINISHED = ("in_progress", "incomplete")
_ELSEWHERE = ("previous_response_id", "previous_input_messages", "prompt")
"""Fields that add text from outside the body."""
_NAMESPACE_MARK = "__"
_FREEFORM_FIELD = "input"
"""A custom tool is shown as a function with this one argument."""
_FREEFORM = {
    "type": "object",
    "properties": {_FREEFORM_FIELD: {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": [_FREEFORM_FIELD],
    "additionalProperties": False,
}
_TOOL_FIELDS = ("name", "description", "parameters", "strict", "defer_loading")

Item = Mapping[str, Any]
Message = dict[str, Any]


def chat_of_responses(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat completions body with the same prompt. Pure; `body` is not changed.

    Raises:
        Unrenderable: text from outside the body, media, tools that the worker itself runs, or a shape that vLLM
            refuses.
    """
    for name in _ELSEWHERE:
        if body.get(name) is not None:
            raise Unrenderable(f"the request sets {name}")
    instructions, given = body.get("instructions"), body.get("input")
    messages: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    open_ended = isinstance(given, list) and bool(given) and _unfinished(given[-1])
    chat: dict[str, Any] = {
        "messages": [*messages, *_messages(given)],
        "add_generation_prompt": not open_ended,
        "continue_final_message": open_ended,
    }
    if body.get("tools"):
        chat["tools"] = _tools(body["tools"])
    effort = _effort(body.get("reasoning"))
    if effort is not None:
        chat["reasoning_effort"] = effort
    if body.get("chat_template_kwargs") is not None:
        chat["chat_template_kwargs"] = body["chat_template_kwargs"]
    return chat


def _unfinished(item: Any) -> bool:
    """Return whether the last item, of any role, is incomplete, so that the model continues it."""
    if not isinstance(item, dict) or item.get("type", "message") not in ("message", "reasoning"):
        return False
    return item.get("status") in _UNFINISHED


def _messages(given: object) -> list[Message]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise Unrenderable("input is neither text nor a list of items", refused=True)
    messages: list[Message] = []
    for item in given:
        if not isinstance(item, dict):
            raise Unrenderable("an input item is not an object", refused=True)
        _add(messages, item)
    return messages


def _add(messages: list[Message], item: Item) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        _add_message(messages, item)
    elif kind == "function_call":
        _add_call(messages, item, _called(item), item.get("arguments"))
    elif kind == "custom_tool_call":
        payload = json.dumps({_FREEFORM_FIELD: item.get("input") or ""}, ensure_ascii=False)
        _add_call(messages, item, item.get("name"), payload)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        messages.append(_tool_output(item))
    elif kind == "reasoning":
        _merge(messages, "reasoning", _thought(item))
    else:
        raise Unrenderable(f"an input item of type {kind!r}")


def _add_message(messages: list[Message], item: Item) -> None:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system", "developer"):
        raise Unrenderable(f"a message has the role {role!r}", refused=True)
    if not isinstance(content, (str, list)):
        raise Unrenderable("a message's content is neither text nor a list of parts", refused=True)
    if role != "assistant":
        messages.append(dict(item))
    else:
        _merge(messages, "content", content if isinstance(content, str) else _first_text(item, content))


def _first_text(item: Item, parts: list[Any]) -> str:
    kinds = {part.get("type") if isinstance(part, dict) else None for part in parts}
    own = item.get("type") == "message"
    if not kinds or not (kinds <= {"input_text"} or (own and kinds <= {"output_text"})):
        raise Unrenderable("an assistant message is not made of text parts")
    return _text_of(parts[0])


def _merge(messages: list[Message], name: str, text: str) -> None:
    """Set field `name` of the assistant's message at the end. If there is none, or it has the field, append a
    message.
    """
    last = messages[-1] if messages else None
    if last is not None and last["role"] == "assistant" and last.get(name) is None:
        last[name] = text
    else:
        messages.append({"role": "assistant", name: text})


def _add_call(messages: list[Message], item: Item, name: object, arguments: object) -> None:
    if not all(isinstance(value, str) for value in (item.get("call_id"), name, arguments)):
        raise Unrenderable("a call lacks its call_id, name or arguments", refused=True)
    call = {"id": item["call_id"], "type": "function", "function": {"name": name, "arguments": arguments}}
    last = messages[-1] if messages else None
    if last is not None and last["role"] == "assistant":
        last.setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "tool_calls": [call]})


def _called(item: Item) -> object:
    name, namespace = item.get("name"), item.get("namespace")
    return f"{namespace}{_NAMESPACE_MARK}{name}" if namespace and isinstance(name, str) else name


def _tool_output(item: Item) -> Message:
    output = item.get("output")
    if isinstance(output, list):
        if item["type"] != "function_call_output" or item.get("status") is not None:
            raise Unrenderable("a tool's output is a list of parts")
        output = [{"type": "text", "text": _text_of(part)} for part in output]
    elif not isinstance(output, str):
        raise Unrenderable("a tool's output is neither text nor a list of parts", refused=True)
    return {"role": "tool", "content": output, "tool_call_id": item.get("call_id")}


def _thought(item: Item) -> str:
    if item.get("encrypted_content"):
        raise Unrenderable("reasoning is encrypted", refused=True)
    summary = item.get("summary")
    if not isinstance(summary, list):
        raise Unrenderable("a reasoning item has no summary", refused=True)
    parts = item.get("content") or summary
    return _text_of(parts[0]) if parts else ""


def _text_of(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else None
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, dict) else None
        raise Unrenderable(f"a part of type {kind!r} is not text")
    return text


def _tools(tools: object) -> list[dict[str, Any]]:
    if not isinstance(tools, list):
        raise Unrenderable("tools is not a list", refused=True)
    return [{"type": "function", "function": function} for tool in tools for function in _functions(tool)]


def _functions(tool: Any) -> list[dict[str, Any]]:
    """Return the functions that the model sees for one tool; a namespace is shown as its functions."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind == "function":
        return [{name: tool.get(name) for name in _TOOL_FIELDS}]
    if kind == "custom":
        return [{"name": tool.get("name"), "description": tool.get("description"), "parameters": _FREEFORM}]
    if kind == "namespace" and isinstance(tool.get("tools"), list):
        return [_named_in(tool, inner) for inner in tool["tools"] if inner.get("type") == "function"]
    raise Unrenderable(f"only the worker runs tools of type {kind!r}")


def _named_in(namespace: Item, tool: Item) -> dict[str, Any]:
    shown = {name: tool.get(name) for name in _TOOL_FIELDS}
    return {**shown, "name": f"{namespace.get('name')}{_NAMESPACE_MARK}{tool.get('name')}"}


def _effort(reasoning: object) -> str | None:
    if reasoning is None:
        return None
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
    if effort is not None and not isinstance(effort, str):
        raise Unrenderable("reasoning.effort is not text", refused=True)
    return effort
