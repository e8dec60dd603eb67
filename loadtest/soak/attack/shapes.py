"""Request bodies of a given size that are cheap to send and expensive to read, as a table of shapes.

A shape fills the field that a path reads as its prompt, or another field. Each body has a unique word near its start,
so that no cache of earlier bodies helps.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
TOKENIZE = "/tokenize"
TRANSCRIPTIONS = "/v1/audio/transcriptions"

_PROMPT_FIELD = {
    CHAT: "messages",
    COMPLETIONS: "prompt",
    MESSAGES: "messages",
    RESPONSES: "input",
    EMBEDDINGS: "input",
    TOKENIZE: "prompt",
}
"""Field of each path's prompt; other paths get a field that is not read."""
_BOUNDARY = "frontier"
_DEEP = 100_000


def _repeated(unit: str, size_bytes: int, first: str) -> str:
    """Return a JSON list of `first` and as many `unit` as fit."""
    return f"[{first}" + f",{unit}" * max(1, (size_bytes - len(first)) // (len(unit) + 1)) + "]"


def _text(unit: str) -> Callable[[str, int, str], str]:
    """Return a shape with one long string. It is the only message where the path requires messages."""

    def build(path: str, size_bytes: int, word: str) -> str:
        text = f'"{word} ' + unit * (size_bytes // len(unit.encode())) + '"'
        chat = _PROMPT_FIELD.get(path) == "messages"
        return f'[{{"role":"user","content":{text}}}]' if chat else text

    return build


def _list_of(unit: str) -> Callable[[str, int, str], str]:
    """Return a shape with a list of many equal values after the body's own word."""
    return lambda path, size_bytes, word: _repeated(unit, size_bytes, json.dumps(word))


def _messages(path: str, size_bytes: int, word: str) -> str:
    return _repeated('{"role":"user","content":"x"}', size_bytes, f'{{"role":"user","content":"{word}"}}')


def _emoji(path: str, size_bytes: int, word: str) -> str:
    return _text("hello world ")(path, size_bytes, word + " \N{GRINNING FACE}")


def _deep(path: str, size_bytes: int, word: str) -> str:
    nest = "[" * _DEEP + "]" * _DEEP
    return _repeated(nest, size_bytes, json.dumps(word))


def _number(path: str, size_bytes: int, word: str) -> str:
    return "[" + "9" * size_bytes + "]"


def _short(path: str, size_bytes: int, word: str) -> str:
    """Return a normal prompt, for shapes that fill another field."""
    return _messages(path, 0, word) if _PROMPT_FIELD.get(path) == "messages" else json.dumps(word)


PROMPTS: dict[str, Callable[[str, int, str], str]] = {
    "empty_lists": _list_of("[]"),
    "empty_objects": _list_of("{}"),
    "short_strings": _list_of('"a"'),
    "short_messages": _messages,
    "text": _text("hello world "),
    "text_one_emoji": _emoji,
    "text_escapes": _text("\\u00e9"),
    "deep": _deep,
    "token_ids": _list_of("1"),
    "huge_number": _number,
    "floats": _list_of("1e308"),
    "denormals": _list_of("2.2250738585072011e-308"),
    "long_floats": _list_of("0." + "7" * 770),
    "long_integers": _list_of("7" * 4_300),
    "deep_lists": _list_of("[" * 900 + "]" * 900),
    "surrogate_pairs": _text("\\ud83d\\ude00"),
    "lone_surrogates": _text("\\ud800"),
    "not_a_number": _list_of("NaN"),
}
"""Shapes for the prompt's field: (path, size, word) -> JSON."""


_SMALL_FIELDS = (
    "stream_options", "vllm_xargs", "max_tokens", "max_completion_tokens", "max_output_tokens", "session_id",
    "priority", "previous_response_id", "reasoning_effort", "truncate_prompt_tokens", "truncation", "n", "echo",
    "logprobs",
)  # fmt: skip


def _many_keys(size_bytes: int) -> str:
    return ",".join(f'"k{index}":0' for index in range(size_bytes // 12))


def _tools(size_bytes: int) -> str:
    return '"tools":' + _repeated('{"type":"function","function":{"name":"f","parameters":{}}}', size_bytes, "{}")


FIELDS: dict[str, Callable[[int], str]] = {
    "many_keys": _many_keys,
    "duplicate_keys": lambda size_bytes: ",".join(['"stream":false'] * (size_bytes // 15)),
    "tools": _tools,
    "kv_transfer_params": lambda size_bytes: f'"kv_transfer_params":{{"a":{_repeated("[]", size_bytes, "0")}}}',
    "model": lambda size_bytes: '"model":"' + "m" * size_bytes + '"',
    "tools_of_floats": lambda size_bytes: '"tools":' + _repeated("1e308", size_bytes, "0"),
    "tools_of_long_integers": lambda size_bytes: '"tools":' + _repeated("7" * 4_300, size_bytes, "0"),
    "small_fields_of_floats": lambda size_bytes: ",".join(
        f'"{name}":' + _repeated("1e308", min(16_000, size_bytes // len(_SMALL_FIELDS)), "0") for name in _SMALL_FIELDS
    ),
    "metadata": lambda size_bytes: f'"metadata":{{"a":{_repeated(chr(34) * 2, size_bytes, "0")}}}',
}
"""Shapes for other fields beside a short prompt: size -> one or more members of the body."""
JSON_SHAPES = (*PROMPTS, *FIELDS, "nan", "utf16", "not_json")
MULTIPART_SHAPES = (
    "file",
    "half_boundaries",
    "half_escapes",
    "many_parts",
    "long_heads",
    "repeated_disposition",
)


@dataclass(frozen=True, slots=True)
class Body:
    path: str
    data: bytes
    content_type: str = "application/json"


def build(path: str, shape: str, size_bytes: int, model: str, word: str) -> Body:
    """Return a body of about `size_bytes`; equal arguments give equal bodies.

    Raises:
        KeyError: there is no such shape.
    """
    if shape in MULTIPART_SHAPES:
        return Body(path, _multipart(shape, size_bytes, model), f"multipart/form-data; boundary={_BOUNDARY}")
    if shape == "utf16":
        text = _object(path, "short_messages", size_bytes // 2, model, word)
        return Body(path, text.encode("utf-16"))
    if shape == "nan":
        return Body(path, (_object(path, "empty_lists", size_bytes, model, word)[:-1] + ',"top_p":NaN}').encode())
    if shape == "not_json":
        return Body(path, _object(path, "empty_lists", size_bytes, model, word)[:-1].encode())
    return Body(path, _object(path, shape, size_bytes, model, word).encode())


def _object(path: str, shape: str, size_bytes: int, model: str, word: str) -> str:
    prompt = PROMPTS.get(shape, _short)(path, size_bytes, word)
    members = [f'"model":{json.dumps(model)}', '"max_tokens":1', f'"{_PROMPT_FIELD.get(path, "data")}":{prompt}']
    if shape in FIELDS:
        members.append(FIELDS[shape](size_bytes))
    elif shape not in PROMPTS:
        raise KeyError(shape)
    return "{" + ",".join(members) + "}"


def _multipart(shape: str, size_bytes: int, model: str) -> bytes:
    """Return a form whose last part names the model, after `size_bytes` of other parts."""
    fence = f"--{_BOUNDARY}\r\n".encode()
    named = b'Content-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    if shape in _FILES:
        before = fence + named % (b'file"; filename="a.wav', _FILES[shape] * (size_bytes // len(_FILES[shape])))
    elif shape == "half_escapes":
        part = fence + named % (b"a", b"\\u0" * (min(size_bytes, _FIELD_BYTES) // 3))
        before = part * max(1, size_bytes // len(part))
    else:
        part = fence + _PARTS[shape]
        parts = max(1, min(size_bytes // len(part), _MOST_PARTS))
        filler = b"x" * max(0, size_bytes // parts - len(part))
        before = (part.removesuffix(b"\r\n") + filler + b"\r\n") * parts
    return before + fence + named % (b"model", model.encode()) + f"--{_BOUNDARY}--\r\n".encode()


_FIELD_BYTES = 1_000_000
_MOST_PARTS = 990
"""The gateway reads up to 1,000 parts, and fields of up to 1 MiB."""
_FILES = {"file": bytes(1), "half_boundaries": b"\r\n--"}
_PARTS = {
    "many_parts": b'Content-Disposition: form-data; name="a"\r\n\r\n\r\n',
    "long_heads": b'Content-Disposition: form-data; name="a"\r\n' + b"x: " + b"y" * 8_000 + b"\r\n\r\n\r\n",
    "repeated_disposition": (b"content-disposition:" * 400)[:8_100] + b"\r\n\r\n\r\n",
}
