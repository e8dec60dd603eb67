import asyncio
import contextlib
import io
import json

import msgspec
import pytest

from backends.simulated.serving import serving
from backends.simulated.settings import WorkerSettings
from policies.spec import PolicySpec
from policies.view import Decision
from router.app import GatewayProcess
from router.cli.main import main
from router.config.model import Config, ModelConfig
from router.placement.request import Request

TOKEN = "an-admin-token-of-the-tests"
BODY = {"messages": [{"role": "user", "content": "hello " * 200}], "max_tokens": 2}


class Gateway:
    """A gateway on free ports, and the model that its workers serve."""

    def __init__(self, system: GatewayProcess, model: str) -> None:
        self.system = system
        self.model = model
        self.url = f"http://{system.ports.admin.address}"

    def candidate(self, endpoint):
        return next(one for one in self.system.fleet.candidates if one.endpoint is endpoint)


@pytest.fixture
def gateway():
    @contextlib.asynccontextmanager
    async def started(workers: int, **settings):
        async with contextlib.AsyncExitStack() as stack:
            served = [await stack.enter_async_context(serving(WorkerSettings(time_scale=0))) for _ in range(workers)]
            config = {
                "host": "127.0.0.1",
                "port": 0,
                "admin_port": 0,
                "workers": [{"url": worker.url} for worker in served],
                **settings,
            }
            system = GatewayProcess(msgspec.convert(config, Config))
            await system.start()
            stack.push_async_callback(system.aclose, 0.0)
            changed = asyncio.Event()
            system.fleet.on_change.append(changed.set)
            while system.fleet.serving < workers:
                changed.clear()
                await asyncio.wait_for(changed.wait(), 20)
            yield Gateway(system, next((card.id for card in system.fleet.models.served()), "m"))

    return started


@pytest.fixture
def explain(tmp_path, monkeypatch, capsys):
    """Run the command on a body, in a thread of its own: the gateway runs in this one."""
    monkeypatch.delenv("WARMROUTE_ADMIN_TOKEN", raising=False)

    async def run(body, *options: str, name: str = "request.json"):
        file = tmp_path / name
        file.write_text(body if isinstance(body, str) else json.dumps(body))
        returncode = await asyncio.to_thread(main, ["explain", str(file), *options])
        out, err = capsys.readouterr()
        return returncode, out, err

    return run


async def test_a_request_is_explained_in_one_sentence_a_term(gateway, explain):
    async with gateway(2) as gate:
        returncode, out, err = await explain({"model": gate.model, **BODY}, "--url", gate.url)
    assert (returncode, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("Dispatch: the request would go to 127.0.0.1:")
    assert f"for {gate.model}; the policy is marginal_cost." in lines[1]
    assert [line[:2] for line in lines if line.startswith(("1.", "2."))] == ["1.", "2."]
    assert lines[2] == "No worker's speed is learned yet: times below assume 61 us per prompt token."
    terms = [line.strip() for line in lines if " is " in line and "_s is " in line]
    assert len(terms) == 14, "seven terms of each of the two candidates"
    assert all(": " in line and line.endswith(".") for line in terms)


async def test_the_raw_document_is_printed_as_json(gateway, explain):
    async with gateway(1) as gate:
        returncode, out, _ = await explain({"model": gate.model, **BODY}, "--url", gate.url, "--json")
    document = json.loads(out)
    assert (returncode, document["action"], len(document["candidates"])) == (0, "dispatch", 1)
    assert set(document["candidates"][0]["terms"]) <= set(document["terms"])


async def test_what_a_death_would_do_is_one_sentence(gateway, explain):
    routes = [{"name": "default", "layers": {"migration": {}}}]
    said = []
    async with gateway(1, routes=routes) as gate:
        for more in ({"stream": True}, {"stream": True, "stop": ["x"]}, {}):
            _, out, _ = await explain({"model": gate.model, **BODY, **more}, "--url", gate.url)
            said.append(out.splitlines()[1])
    assert said == [
        "If its worker dies, the answer goes on at another one.",
        "If its worker dies after its first token, the stream ends with an error: stop.",
        "If its worker dies, another one is asked: the answer is no stream.",
    ]


async def test_an_excluded_worker_is_named_and_without_any_the_request_would_queue(gateway, explain):
    async with gateway(2) as gate:
        body, (drained, other) = {"model": gate.model, **BODY}, gate.system.fleet.endpoints
        gate.system.fleet.drain(drained.id)
        _, out, _ = await explain(body, "--url", gate.url)
        gate.system.fleet.drain(other.id)
        code, nobody, _ = await explain(body, "--url", gate.url)
    assert f"  {drained.id}: draining: drained by the operator" in out.partition("Not considered:")[2]
    assert code == 0
    assert nobody.startswith("Queue: the request would wait in the gateway until a worker is ready. Reason: no worker")


class Patient:
    """Hold every request for two seconds."""

    def decide(self, request, fleet):
        return Decision(tuple(view.id for view in fleet.workers), "a better moment comes", hold_s=2.0)


async def test_a_request_that_the_policy_holds_is_explained_with_the_longest_wait(gateway, explain):
    async with gateway(1) as gate:
        gate.system.core.policies.default.adopt(Patient(), PolicySpec("marginal_cost"))
        worker = gate.system.fleet.endpoints[0].id
        returncode, out, _ = await explain({"model": gate.model, **BODY}, "--url", gate.url)
    assert returncode == 0
    sentence = f"Hold: the request would wait at most 2.00 s in the gateway, then go to {worker}."
    assert out.splitlines()[0] == f"{sentence} Reason: a better moment comes."


async def test_a_fallback_that_would_serve_is_explained_with_the_models_before_it(gateway, explain):
    fallbacks = {"big": {"aliases": ["chat"], "fallback": "middle"}}
    async with gateway(1) as gate:
        system = gate.system
        system.gateway.use_models(
            msgspec.convert({**fallbacks, "middle": {"fallback": gate.model}}, dict[str, ModelConfig])
        )
        worker = system.fleet.endpoints[0].id
        returncode, out, _ = await explain({"model": "chat", **BODY}, "--url", gate.url)
        document = json.loads((await explain({"model": "chat", **BODY}, "--url", gate.url, "-o", "json"))[1])
        system.fleet.drain(worker)
        _, nobody, _ = await explain({"model": "chat", **BODY}, "--url", gate.url)
    assert returncode == 0
    lines = out.splitlines()
    assert lines[0].startswith(f"Dispatch: the request would go to {worker} now.")
    assert lines[1].startswith("The model big has no worker for it: ")
    assert lines[2].startswith("The fallback middle has no worker for it: ")
    assert lines[3] == f"The fallback {gate.model} would serve the request."
    assert "Not considered for big:" in lines and "Not considered for middle:" in lines
    assert document["model"] == gate.model
    assert [one["model"] for one in document["passed_over"]] == ["big", "middle"]
    assert list(document["passed_over"][0]["excluded"]) == [worker]
    assert nobody.splitlines()[1].startswith("The fallback middle has no worker for it: ")
    assert f"Not considered for {gate.model}:\n  {worker}: draining" in nobody


async def test_a_token_is_needed_and_taken_from_option_file_or_environment(gateway, explain, tmp_path, monkeypatch):
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    async with gateway(1, admin_token=TOKEN) as gate:
        body = {"model": gate.model, **BODY}
        returncode, out, err = await explain(body, "--url", gate.url)
        assert (returncode, out) == (1, "")
        assert "401 Unauthorized" in err and "write its token with --token-file or --token" in err
        assert (await explain(body, "--url", gate.url, "--token", TOKEN))[0] == 0
        assert (await explain(body, "--url", gate.url, "--token-file", str(tmp_path / "token")))[0] == 0
        monkeypatch.setenv("WARMROUTE_ADMIN_TOKEN", TOKEN)
        assert (await explain(body, "--url", gate.url))[0] == 0
        monkeypatch.setenv("WARMROUTE_ADMIN_TOKEN", "sha256:" + 64 * "0")
        assert "digest of a token" in (await explain(body, "--url", gate.url))[2]


async def test_a_port_that_is_no_admin_port_is_named(gateway, explain):
    async with gateway(1) as gate:
        worker = gate.system.config.workers[0].url
        returncode, _, err = await explain({"model": gate.model, **BODY}, "--url", worker)
    assert returncode == 1
    assert "not as an admin port answers; write the gateway's admin port as --url" in err


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ('{"model": "m",\n "messages": [}\n', "request.json:2:15", "not JSON: Expecting value"),
        ("[1]", "request.json", "the body is not a JSON object"),
        ("[" * 100_000, "request.json", "nested too deeply"),
    ],
)
async def test_a_body_that_is_no_request_is_named_with_its_place(explain, text, place, problem):
    returncode, _, err = await explain(text)
    assert returncode == 2
    assert f"{place}: {problem}" in err


@pytest.mark.parametrize("url", ["localhost:8001", "ftp://h", "http://h/admin", "http://"])
async def test_an_address_that_is_no_admin_port_is_refused(explain, url):
    returncode, _, err = await explain(BODY, "--url", url)
    assert returncode == 2
    assert "--url" in err and "write http://HOST:PORT or https://HOST:PORT" in err


async def test_a_missing_file_is_named(explain, tmp_path, capsys):
    assert await asyncio.to_thread(main, ["explain", str(tmp_path / "none.json")]) == 2
    assert "none.json: cannot be read: No such file or directory" in capsys.readouterr().err


async def test_the_body_may_come_from_standard_input(gateway, explain, monkeypatch, capsys):
    async with gateway(1) as gate:
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"model": gate.model, **BODY})))
        assert await asyncio.to_thread(main, ["explain", "-", "--url", gate.url]) == 0
    assert capsys.readouterr().out.startswith("Dispatch: ")


async def test_explain_prints_the_pairs_of_a_kv_handover_with_their_terms(gateway, explain, monkeypatch):
    handover = {"connector": "nixl_pull", "latency_s": 0.0, "transfer_tokens_per_s": 1e12}
    async with gateway(2, handover=handover) as started:
        prefill, decode = started.system.fleet.endpoints
        for endpoint, role in ((prefill, "prefill"), (decode, "decode")):
            started.system.fleet.describe(endpoint.id, {}, 1.0, None, role)
        code, out, _ = await explain(BODY, "--url", started.url)
        assert code == 0
        assert "No KV handover: one worker costs no more than the best pair." in out
        assert f"KV handover from {prefill.id} to {decode.id}, cost" in out and f"{decode.id} alone, cost" in out
        assert "ms: time in which the KV cache moves." in out
        for number in range(9):
            now_s = started.system.now_s()
            request = Request(f"stream-{number}", "/v1/completions", started.model, None, 10, now_s)
            started.system.core.tickets.first_token(started.system.core.dispatcher.dispatch(request, now_s), now_s)
        out = (await explain(BODY, "--url", started.url))[1]
        assert f"KV handover: {prefill.id} would compute the prompt, and {decode.id} would answer" in out
        out = (await explain({**BODY, "n": 2}, "--url", started.url))[1]
        assert "No KV handover: two workers cannot share this request" in out
        assert "KV handover from" not in out
