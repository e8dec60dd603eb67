import json

import httpx
import pytest

from policies.view import Residency
from router.residency.prompt import Prompt, PromptSource
from router.residency.view import Match
from router.workers import cache_trial, selftest
from router.workers.selftest import SelfTest, SelfTestTarget
from router.workers.subscriptions import NO_EVENTS

PROMPT_TOKENS = 40
FULL = 32


def answer(status, text):
    return httpx.Response(status, content=text.encode())


class FakeWorker:
    """Answers completions and metrics. `reported` None leaves the details out; `foreign` is other traffic.

    `chat_tokens` is how long it says that any chat is, 0 that it has no /tokenize.
    """

    def __init__(self, reported=FULL, hits=FULL, queries=True, foreign=0, broken=None, chat_tokens=0):
        self.reported, self.hits, self.queries, self.foreign, self.broken = reported, hits, queries, foreign, broken
        self.chat_tokens = chat_tokens
        self.requests = []

    def __call__(self, request):
        if request.url.path == "/metrics":
            return answer(200, self._metrics())
        if request.url.path == "/tokenize":
            return (
                answer(200, '{"tokens": ' + f"{[7] * self.chat_tokens}" + "}") if self.chat_tokens else answer(404, "")
            )
        self.requests.append(request)
        if self.broken is not None:
            return self.broken
        usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": 1}
        if self.reported is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.reported if len(self.requests) > 1 else 0}
        return answer(200, json.dumps({"choices": [], "usage": usage}))

    def _metrics(self):
        asked = len(self.requests)
        if not self.queries:
            return "vllm:num_requests_running 0\n"
        queries = asked * (PROMPT_TOKENS + self.foreign)
        hits = self.hits if asked > 1 else 0
        return f"vllm:prefix_cache_queries_total {queries}\nvllm:prefix_cache_hits_total {hits}\n"


class FakeResidency:
    def __init__(self, tokens):
        self.tokens = tokens

    def match(self, prompt, slots):
        return dict.fromkeys(slots, Match(self.tokens, 0, Residency.EXACT))


class FakeIdentity:
    def __init__(self, tokens=PROMPT_TOKENS, source=PromptSource.RENDERED):
        self.prompt = None if tokens is None else Prompt(tokens, source, lambda block: ())

    async def identify(self, path, parsed, adapter):
        return self.prompt


async def run(wire, worker, *, held=FULL, identity=None, **changes):
    fields = {
        "slot": 3,
        "rank": None,
        "model": "m",
        "block_tokens": 16,
        "prefix_caching": True,
        "max_model_len": 4096,
        "no_events": None,
    }
    async with wire.answering(worker) as (client, endpoint):
        subject = SelfTestTarget(**{"endpoint": endpoint, **fields, **changes})
        test = SelfTest(client, FakeResidency(held), identity or FakeIdentity(), subject)
        verdict = await test.run()
        assert test.answered is (len(worker.requests) == 2 and worker.broken is None)
        return verdict


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(selftest, "SETTLE_S", 0.05)
    monkeypatch.setattr(cache_trial, "SETTLE_S", 0.05)


async def test_prediction_and_report_agree(wire):
    worker = FakeWorker()
    verdict = await run(wire, worker)
    assert verdict.residency is Residency.EXACT and "32" in verdict.reason
    bodies = [json.loads(request.content) for request in worker.requests]
    assert bodies[0] == bodies[1] and bodies[0]["max_tokens"] == 1 and bodies[0]["stream"] is False
    assert len(bodies[0]["prompt"].split()) == 32
    assert "x-data-parallel-rank" not in worker.requests[0].headers


async def test_every_run_has_its_own_prompt(wire):
    workers = FakeWorker(), FakeWorker()
    for worker in workers:
        await run(wire, worker)
    assert workers[0].requests[0].content != workers[1].requests[0].content


async def test_a_rank_is_addressed(wire):
    worker = FakeWorker()
    await run(wire, worker, rank=2)
    assert worker.requests[1].headers["x-data-parallel-rank"] == "2"


async def test_a_short_context_has_a_short_prompt(wire):
    worker = FakeWorker()
    await run(wire, worker, max_model_len=100)
    assert len(json.loads(worker.requests[0].content)["prompt"].split()) == 10


async def test_a_worker_with_very_large_blocks_has_a_prompt_of_bounded_size(wire):
    worker = FakeWorker()
    await run(wire, worker, block_tokens=cache_trial.MOST_WORDS * 64, max_model_len=None)
    assert len(json.loads(worker.requests[0].content)["prompt"].split()) == cache_trial.MOST_WORDS


@pytest.mark.parametrize(
    ("worker", "arguments", "residency", "words"),
    [
        (FakeWorker(reported=16), {}, Residency.APPROXIMATE, "predicted 32 of 40 tokens cached, 16 reported"),
        (FakeWorker(), {"held": 0}, Residency.APPROXIMATE, "predicted 0"),
        (FakeWorker(), {"identity": FakeIdentity(43)}, Residency.APPROXIMATE, "43 tokens here, 40 on the worker"),
        (FakeWorker(), {"identity": FakeIdentity(None)}, Residency.APPROXIMATE, "--model-dir"),
        (FakeWorker(), {"identity": FakeIdentity(40, PromptSource.TEXT)}, Residency.APPROXIMATE, "--model-dir"),
        (FakeWorker(reported=None), {}, Residency.EXACT, "counted by its metrics"),
        (FakeWorker(reported=None, hits=0), {}, Residency.APPROXIMATE, "0 counted"),
        (FakeWorker(reported=None, foreign=5), {}, Residency.UNKNOWN, "unconfirmed"),
        (FakeWorker(reported=None, queries=False), {}, Residency.UNKNOWN, "unconfirmed"),
        (FakeWorker(), {"no_events": NO_EVENTS}, Residency.APPROXIMATE, "--kv-events-config"),
        (FakeWorker(reported=None), {"no_events": NO_EVENTS}, Residency.APPROXIMATE, "nothing corrects"),
        (FakeWorker(reported=None, hits=0), {"no_events": NO_EVENTS}, Residency.OFF, "found nothing"),
        (FakeWorker(reported=None, queries=False), {"no_events": NO_EVENTS}, Residency.APPROXIMATE, "cannot be read"),
        (FakeWorker(reported=None, hits=0, foreign=5), {"no_events": NO_EVENTS}, Residency.APPROXIMATE, "for other"),
        (
            FakeWorker(reported=None, hits=0),
            {"no_events": NO_EVENTS, "block_tokens": PROMPT_TOKENS},
            Residency.APPROXIMATE,
            "shorter than a block",
        ),
        (FakeWorker(), {}, Residency.EXACT, "rendering not compared: /tokenize answered 404"),
        (FakeWorker(chat_tokens=41), {}, Residency.APPROXIMATE, "a question: 40 tokens here, 41 on the worker"),
        (FakeWorker(broken=answer(401, "")), {}, Residency.UNKNOWN, "answered 401"),
        (FakeWorker(broken=answer(200, "<html>")), {}, Residency.UNKNOWN, "without usage"),
        (FakeWorker(broken=answer(200, '{"usage": {}}')), {}, Residency.UNKNOWN, "without usage"),
    ],
)
async def test_a_verdict_follows_reports_and_counters(wire, worker, arguments, residency, words):
    verdict = await run(wire, worker, **arguments)
    assert verdict.residency is residency and words in verdict.reason


async def test_a_worker_with_caching_off_gets_no_request(wire):
    worker = FakeWorker()
    verdict = await run(wire, worker, prefix_caching=False)
    assert verdict.residency is Residency.OFF and worker.requests == []


@pytest.mark.parametrize(
    ("worker", "arguments", "blind"),
    [
        (FakeWorker(), {}, False),
        (FakeWorker(reported=16), {}, False),
        (FakeWorker(), {"held": 0}, True),
        (FakeWorker(reported=0), {"held": 0}, False),
        (FakeWorker(), {"identity": FakeIdentity(43)}, True),
        (FakeWorker(), {"no_events": NO_EVENTS}, False),
        (FakeWorker(chat_tokens=41), {}, True),
    ],
)
async def test_a_view_that_misses_a_cached_prompt_is_blind(wire, worker, arguments, blind):
    assert (await run(wire, worker, **arguments)).blind is blind


@pytest.mark.parametrize(
    ("worker", "arguments", "settled"),
    [
        (FakeWorker(), {}, True),
        (FakeWorker(reported=None), {"no_events": NO_EVENTS}, True),
        (FakeWorker(reported=None, queries=False), {"no_events": NO_EVENTS}, False),
        (FakeWorker(reported=None, foreign=5), {"no_events": NO_EVENTS}, False),
        (FakeWorker(reported=None, foreign=5), {}, False),
        (FakeWorker(reported=None, hits=0), {"no_events": NO_EVENTS}, False),
        (FakeWorker(), {"prefix_caching": False}, True),
        (FakeWorker(broken=answer(401, "")), {}, False),
    ],
)
async def test_a_verdict_without_proof_is_not_settled(wire, worker, arguments, settled):
    assert (await run(wire, worker, **arguments)).settled is settled
