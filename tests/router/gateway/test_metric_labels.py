import pytest

from backends.worker import ServedModel, WorkerFacts
from router.gateway.flow import request_log
from tests.support.answers import answer_json, answer_stream
from tests.support.gateway_rig import FACTS
from tests.support.raw_client import get, post
from tests.support.waiting import eventually

CHAT, TRACE = "/v1/chat/completions", "4bf92f3577b34da6a3ce929d0e0e4736"


async def labels(gate, *bodies, extra=b""):
    for body in bodies:
        await gate.ask(post(body=body, extra=extra))
    await eventually(lambda: len(gate.counted("requests")) == len(bodies))
    return [labels for *labels, _ in gate.counted("requests")]


async def test_a_stream_is_labelled_with_path_route_and_model(rig):
    gate = await rig(answer_stream, routes=[{"name": "chats", "match": {"model": "m"}}, {"name": "rest"}])
    assert await labels(gate, b'{"model":"m","stream":true,"messages":[]}') == [[CHAT, "chats", "m"]]
    for name, value in (("prompt", 40), ("output", 3)):
        (lengths,) = gate.registry.histogram(f"request_{name}_tokens").values.items()
        assert (lengths[0], lengths[1].total) == ((CHAT, "chats", "m"), value)
    assert gate.counted("time_to_first_token_seconds") == [(CHAT, "chats", "m")]


async def test_cached_tokens_and_errors_are_labelled_with_route_and_model(rig):
    gate = await rig(answer_json)
    await labels(gate, b'{"model":"m","messages":[]}', b'{"model":"unheard","messages":[]}', b'{"model":')
    tokens = gate.registry.counter("route_prompt_tokens").values
    assert tokens == {("default", "m", "true"): 32, ("default", "m", "false"): 8}
    assert [one[1:] for one in gate.counted("errors")] == [("before_first", "default", "other"), ("request", "", "")]


async def test_a_model_that_no_worker_lists_is_labelled_other(rig):
    gate = await rig(answer_json)
    found = await labels(gate, b'{"model":"made-up-by-a-client","messages":[]}', b'{"messages":[]}', b'{"model":')
    assert [model for _, _, model in found] == ["other", "", ""]


async def test_a_fallback_is_labelled_with_the_model_that_serves(rig):
    gate = await rig(answer_json, models={"big": {"fallback": "m"}})
    assert await labels(gate, b'{"model":"big","messages":[]}') == [[CHAT, "default", "m"]]


async def test_models_beyond_the_limit_are_labelled_other(rig, monkeypatch):
    facts = WorkerFacts(FACTS.version, tuple(ServedModel(name) for name in "abc"), FACTS.caches)
    monkeypatch.setattr(request_log, "MODELS_NAMED", 2)
    gate = await rig(answer_json, facts=facts)
    found = await labels(gate, *(b'{"model":"%s","messages":[]}' % name for name in (b"a", b"b", b"c", b"a")))
    assert [model for _, _, model in found] == ["a", "a", "b", "other"]


@pytest.mark.parametrize(("flags", "trace"), [(b"01", TRACE), (b"00", None)])
async def test_a_sampled_request_brings_its_trace(rig, flags, trace):
    gate = await rig(answer_json)
    line = b"traceparent: 00-%s-00f067aa0ba902b7-%s\r\n" % (TRACE.encode(), flags)
    await labels(gate, b'{"model":"m","messages":[]}', extra=line)
    for name in ("request_duration_seconds", "time_to_first_token_seconds"):
        (found,) = gate.registry.histogram(name).values.values()
        assert [one for one, _, _ in found.exemplars.values()] == ([] if trace is None else [trace])
    assert line.strip() in b"\r\n".join(gate.workers[0].requests[0].lines)


async def test_the_gateways_own_answers_have_a_path_alone(rig):
    gate = await rig(answer_json)
    await gate.ask(get(b"/v1/models"))
    assert gate.counted("requests") == [("local", "", "", "200")]
