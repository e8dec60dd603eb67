import json

import pytest

from backends.simulated.serving import serving
from backends.simulated.settings import WorkerSettings
from backends.worker import RankCache, ServedModel, WorkerFacts
from router.cli.checks.examine import WorkerReport
from router.cli.checks.examine_usage import examine_usage
from router.config.model import Config, HandoverConfig, LimitsConfig, RateLimitsConfig, WorkerConfig
from tests.support.answers import DONE, END, STREAM_HEAD, answer_json, chunk, event, usage_event
from tests.support.scripted_worker import ScriptedWorker

FACTS = WorkerFacts(version="0.33.0", models=(ServedModel("m"),), caches={0: RankCache(16, 100, True)})
TOKENS = LimitsConfig(tenants={"default": RateLimitsConfig(tokens_per_minute=60)})
REQUESTS = LimitsConfig(keys={"a": RateLimitsConfig(requests_per_minute=60)})


async def found(url="http://h:1", *, requests=False, **sections):
    config = Config(workers=(WorkerConfig(url=url),), **sections)
    return await examine_usage(config, [WorkerReport("w", url, FACTS)], requests=requests)


async def test_the_defaults_need_no_warning():
    assert await found() == await found(limits=TOKENS) == await found(limits=REQUESTS) == []


@pytest.mark.parametrize(("limits", "who"), [(REQUESTS, "whose clients ask"), (TOKENS, "with a token limit")])
async def test_passive_says_which_streams_still_report(limits, who):
    (warning,) = await found(limits=limits, observe_usage=0.0)
    assert who in warning and "set it to 0.05" in warning


async def test_streams_with_a_handover_are_named_for_callers_with_a_token_limit():
    handover = HandoverConfig(connector="nixl_pull")
    assert await found(handover=handover) == await found(handover=handover, limits=REQUESTS) == []
    (warning,) = await found(handover=handover, limits=TOKENS)
    assert "KV handover" in warning and "the estimate" in warning


async def test_an_embedded_worker_reports_usage():
    async with serving(WorkerSettings(model_name="m")) as worker:
        assert await found(worker.url, requests=True, limits=TOKENS) == []


def stream(*more):
    async def script(script):
        await script.say(STREAM_HEAD, chunk(event("a")), *more, chunk(DONE), END)

    return script


async def refuses(script):
    if "stream_options" in json.loads(script.seen.body):
        await answer_json(script, b"400 Bad Request", b"{}")
    else:
        await stream()(script)


async def refuses_all(script):
    await answer_json(script, b"400 Bad Request", b"{}")


@pytest.mark.parametrize(
    ("script", "what"),
    [
        (stream(chunk(usage_event())), None),
        (stream(), "w reports no usage in a stream that asks for it"),
        (refuses, "w refuses stream_options in a stream that asks for it"),
        (refuses_all, None),
    ],
    ids=["reports", "hides", "refuses", "no completions"],
)
@pytest.mark.parametrize(("limits", "effect"), [(TOKENS, "pay the estimate"), (REQUESTS, "show no cached tokens")])
async def test_a_worker_is_asked(script, what, limits, effect):
    worker = await ScriptedWorker(script).start()
    try:
        warnings = await found(f"http://{worker.id}", requests=True, limits=limits)
    finally:
        await worker.stop()
    assert len(warnings) == (what is not None)
    if what is not None:
        assert what in warnings[0] and effect in warnings[0]
