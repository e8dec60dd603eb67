"""Requests with known prompts, and the texts of their answers."""

import json
import random

import httpx

WORDS = tuple("alpha beta gamma delta red blue green one two three four fish house tree car".split())  # noqa: SIM905
ANSWER_TOKENS = 24
GREEDY = {"model": "tiny", "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}
ANSWER_S = 200


def prompt(seed, words=300):
    drawn = random.Random(seed)
    return " ".join(drawn.choice(WORDS) for _ in range(words))


def completion(seed):
    return "/v1/completions", GREEDY | {"prompt": prompt(seed)}


def chat(seed):
    return "/v1/chat/completions", GREEDY | {"messages": [{"role": "user", "content": prompt(seed)}]}


def message(seed):
    asked = {"messages": [{"role": "user", "content": prompt(seed)}]}
    return "/v1/messages", {"model": "tiny", "max_tokens": ANSWER_TOKENS, "temperature": 0} | asked


def response(seed):
    limits = {"max_output_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}
    return "/v1/responses", {"model": "tiny", "input": prompt(seed)} | limits


class Told(Exception):
    pass


async def ask(url, path, body, *, stream=False, prefill=None, limit_s=ANSWER_S):
    """Return the text of an answer, and its usage. `prefill` names the worker that hands the prompt over.

    Raises:
        Told: the answer is an error.
    """
    headers = {} if prefill is None else {"x-prefiller-host-port": prefill.id}
    async with httpx.AsyncClient(timeout=limit_s, headers=headers) as client:
        try:
            if stream:
                return await _streamed(client, url + path, body)
            answer = await client.post(url + path, json=body)
        except httpx.RemoteProtocolError as error:
            raise Told(str(error)) from error
    if answer.status_code != 200:
        raise Told(answer.text)
    whole = answer.json()
    assert not whole.get("kv_transfer_params")
    return _text(whole), whole["usage"]


def _text(whole):
    if "choices" in whole:
        (choice,) = whole["choices"]
        return choice["text"] if "text" in choice else choice["message"]["content"]
    parts = whole["content"] if "content" in whole else [part for item in whole["output"] for part in item["content"]]
    return "".join(part["text"] for part in parts)


async def _streamed(client, url, body):
    options = {"stream_options": {"include_usage": True}} if "/completions" in url or "/chat" in url else {}
    text, usage = "", None
    async with client.stream("POST", url, json=body | {"stream": True} | options) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                frame = json.loads(line[6:])
                if "error" in frame or frame.get("type") == "error":
                    raise Told(line)
                usage = frame.get("usage") or usage
                text += _piece(frame)
    return text, usage


def _piece(frame):
    if "choices" in frame:
        return "".join(one.get("text") or (one.get("delta") or {}).get("content") or "" for one in frame["choices"])
    delta = frame.get("delta") or ""
    return delta.get("text", "") if isinstance(delta, dict) else delta
