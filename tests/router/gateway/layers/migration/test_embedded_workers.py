"""Answers of embedded workers that die in each of vLLM's ways: emoji, Chinese characters and words, by vLLM's rules."""

import json
from contextlib import AsyncExitStack

import pytest

from backends.simulated.deaths import DeathBody, WorkerDeath
from backends.simulated.serving import serving
from backends.simulated.settings import WorkerSettings
from router.placement.fleet import fleet
from router.requests.queues import gone_workers
from tests.support.raw_client import post

CHAT, TEXT = b"/v1/chat/completions", b"/v1/completions"
ROUTES = [{"name": "default", "layers": {"migration": {"limit": 1}}}]
SECRET = "SECRET-SYSTEM-PROMPT"
TOKENS = 40
WAYS = ("reset", "end", "error", "abort", "silence")


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(gone_workers, "QUIET_S", 0.2)
    monkeypatch.setattr(gone_workers, "_LOOK_S", 0.02)
    monkeypatch.setattr(gone_workers, "_PAUSE_S", 0.05)
    monkeypatch.setattr(fleet, "EVIDENCE_S", 0.0)


def request(path):
    asked = {"messages": [{"role": "system", "content": SECRET}, {"role": "user", "content": "Hi"}]}
    asked = asked if path == CHAT else {"prompt": f"{SECRET} Hi"}
    members = {"model": "m", "stream": True, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    return post(path, json.dumps(members | asked | {"stream_options": {"include_usage": True}}).encode())


def seen(reply):
    lines = [line[6:] for line in reply.body.split(b"\n\n") if line.startswith(b"data: ")]
    assert lines.count(b"[DONE]") == 1 and lines[-1] == b"[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    assert not [event for event in events if "error" in event]
    choices = [event["choices"][0] for event in events if event["choices"]]
    text = "".join(one["text"] if "text" in one else one["delta"].get("content") or "" for one in choices)
    usage = {name: events[-1]["usage"][f"{name}_tokens"] for name in ("prompt", "completion", "total")}
    ids = {event["id"] for event in events}
    return text, [one["finish_reason"] for one in choices if one["finish_reason"]], usage, len(ids)


async def answered(rig, path, way=None, at_token=0):
    """Return what the client of two workers sees. The first one dies when a stream has so many tokens."""
    async with AsyncExitStack() as stack:
        settings = WorkerSettings(time_scale=0.02, deaths=True, character_share=0.4, model_name="m")
        first, other = [await stack.enter_async_context(serving(settings)) for _ in range(2)]
        gate = await rig(routes=ROUTES)
        gate.join(first.url)
        gate.join(other.url)
        if way is not None:
            first.worker.death.plan(DeathBody(WorkerDeath(way), at_token))
        reply = await gate.ask(request(path))
        assert SECRET.encode() not in reply.body
        return seen(reply), gate.counted("migrations")


async def check(rig, path, deaths):
    expected, none = await answered(rig, path)
    assert (none, expected[1], len(expected[0].encode()) > len(expected[0])) == ([], ["length"], True)
    for way, at_token in deaths:
        got, counted = await answered(rig, path, way, at_token)
        assert (way, at_token, got) == (way, at_token, expected)
        assert [one[1] for one in counted] in ([], ["resumed"])
        assert counted or at_token <= 3  # else nothing had been sent, or the role alone


@pytest.mark.parametrize("path", [CHAT, TEXT], ids=["chat", "completions"])
async def test_the_answer_is_that_of_one_worker(rig, path):
    await check(rig, path, [(way, at) for at, way in enumerate(WAYS, start=6)])


@pytest.mark.nightly
@pytest.mark.parametrize("path", [CHAT, TEXT], ids=["chat", "completions"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_death_at_each_token_leaves_no_trace(rig, path, way):
    await check(rig, path, [(way, at) for at in range(TOKENS)])
