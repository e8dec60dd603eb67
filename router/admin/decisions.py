"""The decision log, and the decision that a request would get now."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from policies.registry import terms_of
from router.admin.documents import DecisionDocument, ExplanationDocument, Question
from router.admin.operations import Answer, Call
from router.admin.problems import invalid
from router.placement.decisions import DecisionRecord


async def latest(call: Call) -> Answer:
    """Answer with the decision log, newest first."""
    now_s = call.system.now_s()
    encoded = []
    for record in call.system.dispatcher.decisions(call.query["limit"]):
        encoded.append(msgspec.json.encode(_document(record, now_s)))
        # Streams run on this event loop too, and a long log of a large fleet must not delay them.
        await asyncio.sleep(0)
    return Answer(b'{"decisions":[' + b",".join(encoded) + b"]}")


def _document(record: DecisionRecord, now_s: float) -> DecisionDocument:
    """Add the wall clock time, because the core has monotonic seconds and an operator compares logs by wall clock."""
    age_s = max(0.0, now_s - record.at_s)
    at = (datetime.now(UTC) - timedelta(seconds=age_s)).isoformat(timespec="milliseconds")
    return msgspec.convert({**_in_seconds(record.to_builtins()), "at": at, "age_s": age_s}, DecisionDocument)


def _in_seconds(document: dict[str, Any]) -> dict[str, Any]:
    """Remove estimates that are not in seconds: before a speed is learned, they only rank candidates."""
    for candidate in document["candidates"]:
        if not candidate["learned"]:
            candidate |= dict.fromkeys(("queue_wait_s", "prefill_s", "first_token_s"))
    return document


async def explain(call: Call) -> Answer:
    """Answer with the dispatcher's decision. Nothing is sent to a worker and nothing is reserved."""
    question: Question = call.body
    if not question.path.startswith("/"):
        raise invalid(f"path is {question.path!r}; write one that starts with a slash, as in /v1/chat/completions")
    headers = {name.lower(): value for name, value in question.headers.items()}
    request = await call.system.request_of(question.path, headers, _bytes(question.body), question.key)
    explanation = call.system.dispatcher.explain(request, call.system.now_s())
    document = {**_in_seconds(explanation.to_builtins()), "terms": terms_of(explanation.policy)}
    return Answer(msgspec.convert(document, ExplanationDocument))


def _bytes(body: msgspec.Raw) -> bytes:
    """Return the request's bytes as written; a JSON string holds them as text."""
    raw = bytes(body)
    if not raw.lstrip().startswith(b'"'):
        return raw
    text: str = msgspec.json.decode(raw, type=str)
    return text.encode()
