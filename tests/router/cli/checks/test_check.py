import asyncio
import contextlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from backends.simulated.serving import serving
from backends.simulated.settings import WorkerSettings, shipped_model_dir
from backends.worker import KvEventSource, RankCache, ServedModel, WorkerFacts
from policies.view import Residency
from router.cli.checks import examine
from router.cli.checks.prompts import PromptOrigin
from router.config.memory import MemoryLimit
from router.config.model import Config, WorkerConfig
from router.workers.cache_trial import CacheTrialResult
from router.workers.selftest_rendering import CHATS, RenderingComparison
from tests.support.hub import hub


def test_without_workers_the_settings_are_checked(inside):
    ran = inside("check")
    assert ran.returncode == 0
    assert "the settings are valid" in ran.stdout
    assert "--worker URL" in ran.stdout


def test_memory_limit_and_budgets_are_stated(inside, monkeypatch):
    monkeypatch.setattr("router.cli.checks.check.memory_limit", lambda: MemoryLimit(1 << 30, "cgroup v2"))
    ran = inside("check", "--set", "limits.max_buffered_response_bytes=1000000000", "--set", "processes=1")
    assert ran.returncode == 0
    assert "memory limit 1,024.0 MiB (cgroup v2)" in ran.stdout
    assert "limits.max_buffered_body_bytes: 113.8 MiB" in ran.stdout
    assert "warmroute: warning: the byte budgets are" in ran.stderr
    assert "lower limits.max_buffered_response_bytes" in ran.stderr
    found = json.loads(inside("check", "--json", "--set", "limits.max_buffered_response_bytes=1000000000").stdout)
    assert found["memory"]["limit_bytes"] == 1 << 30
    assert found["memory"]["max_buffered_response_bytes"] == 1_000_000_000
    assert len(found["warnings"]) == 1


def test_too_few_open_files_are_named(inside, monkeypatch):
    monkeypatch.setattr("router.cli.checks.check.reachable_descriptors", lambda: 1_024)
    ran = inside("check", "--set", "limits.max_connections=1000", "--set", "processes=1")
    assert ran.returncode == 0
    assert "warmroute: warning: limits.max_connections is lowered from 1000 to 352" in ran.stderr
    found = json.loads(inside("check", "--json", "--set", "limits.max_connections=1000", "--set", "processes=1").stdout)
    assert ["RLIMIT_NOFILE allows 1024" in warning for warning in found["warnings"]] == [True]


def test_an_unreachable_worker_is_named_with_a_fix(inside, dead_port):
    ran = inside("check", "--worker", f"http://127.0.0.1:{dead_port}")
    assert ran.returncode == 1
    assert f"warmroute: --worker: worker 127.0.0.1:{dead_port}: cannot connect to" in ran.stderr
    assert f"curl http://127.0.0.1:{dead_port}/health" in ran.stderr
    assert "unreachable" in ran.stdout


def test_an_unreachable_worker_as_json_names_its_line(inside, dead_port, tmp_path):
    (tmp_path / "w.yaml").write_text(f"workers:\n  - url: http://127.0.0.1:{dead_port}\n")
    ran = inside("check", "--config", "w.yaml", "--json")
    assert ran.returncode == 1
    (problem,) = json.loads(ran.stdout)["problems"]
    assert problem["place"].startswith("w.yaml:2:")
    assert problem.keys() == {"place", "problem", "fix"}


def test_a_mistake_in_settings_is_printed_as_json(inside):
    ran = inside("check", "--port", "x", "--json")
    assert ran.returncode == 2
    assert json.loads(ran.stdout)["problems"][0]["place"] == "--port"


CARD = ServedModel("m", max_model_len=4096)
CACHES = {0: RankCache(16, 1000, True)}


@pytest.fixture
def found(monkeypatch):
    """Examine one worker about which a probe finds given facts."""

    async def found(facts, *, reachable=True, reports=True, exact=True):
        async def probe(*_, **__):
            return facts

        async def connects(_):
            return reachable

        async def tried(*_):
            return (
                reports if not isinstance(reports, bool) else CacheTrialResult(100, 96 if reports else None, None, "")
            )

        async def origins(_, served):
            return {name: PromptOrigin(exact, "as the test says") for name in served}

        async def get(*_):
            return b'{"data": []}'

        monkeypatch.setattr(examine, "prompt_origins", origins)

        async def compared(*_):
            return RenderingComparison(compared=4)

        monkeypatch.setattr(examine, "compare_rendering", compared)
        monkeypatch.setattr(examine, "probe", probe)
        monkeypatch.setattr(examine.WorkerClient, "get", get)
        monkeypatch.setattr(examine, "_connects", connects)
        monkeypatch.setattr(examine, "_found", tried)
        (report,) = await examine.examine_all(Config(workers=(WorkerConfig(url="http://a:1"),)), requests=True)
        return report

    return found


def source(replay="tcp://a:5657"):
    return KvEventSource(0, "tcp://a:5557", replay)


def flags(report):
    return [advice.flag for advice in report.advice]


ALL, EVENTLESS = WorkerFacts("0.33.0", (CARD,), CACHES, (source(),)), WorkerFacts("0.33.0", (CARD,), CACHES)
EXACT, APPROXIMATE, OFF = Residency.EXACT, Residency.APPROXIMATE, Residency.OFF
CACHING, DETAILS = ["--enable-prefix-caching"], ["--enable-prompt-tokens-details"]
OTHERS, NO_REUSE = CacheTrialResult(100, None, None, "other traffic"), CacheTrialResult(100, None, 0)
ADDRESSES = [f"open tcp://a:{port}, or set the worker's kv_events.endpoint" for port in (5557, 5657)]


@pytest.mark.parametrize(
    ("facts", "options", "residency", "advised", "reason"),
    [
        (ALL, {}, EXACT, [], "publishes KV events"),
        (ALL, {"reports": None}, EXACT, [], ""),
        (ALL, {"reports": False}, EXACT, DETAILS, ""),
        (EVENTLESS, {}, APPROXIMATE, [examine.EVENTS_FLAG], ""),
        (EVENTLESS, {"reports": OTHERS}, APPROXIMATE, [examine.EVENTS_FLAG, *DETAILS], ""),
        (ALL, {"reachable": False}, APPROXIMATE, ADDRESSES, "tcp://a:5557, tcp://a:5657"),
        (ALL, {"exact": False}, APPROXIMATE, ["--model-dir DIR (to warmroute serve)"], "no token ids for m: as the"),
        (replace(EVENTLESS, caches={0: RankCache(16, 1000, False)}), {}, OFF, CACHING, "prefix caching is off"),
        (EVENTLESS, {"reports": NO_REUSE}, OFF, CACHING, "none of 100 prompt tokens were cached"),
    ],
)
async def test_what_a_worker_reports_decides_its_view_and_the_advice(found, facts, options, residency, advised, reason):
    report = await found(facts, **options)
    assert (report.residency, report.problem) == (residency, None)
    assert flags(report) == advised
    assert reason in report.reason


def test_the_flag_for_events_can_be_pasted():
    pasted = json.loads(examine.EVENTS_FLAG.split("'")[1])
    assert pasted["enable_kv_cache_events"] is True and pasted["endpoint"] != pasted["replay_endpoint"]


async def test_offloaded_blocks_named_by_hash_alone_bring_the_flag_that_names_them(found, monkeypatch):
    async def by_hash(_):
        return True

    monkeypatch.setattr(examine, "names_by_hash", by_hash)
    report = await found(ALL)
    assert report.residency is Residency.EXACT
    (flag,) = flags(report)
    assert "self_describing_kv_events" in flag


async def test_without_a_replay_socket_the_flag_says_so(found):
    report = await found(replace(ALL, event_sources=(source(None),)), reports=False)
    assert report.residency is Residency.EXACT
    assert "replay_endpoint is missing" in flags(report)[0] and flags(report)[1:] == DETAILS


@pytest.mark.parametrize(
    ("facts", "problem"),
    [(WorkerFacts(models=(CARD,), sleeping=True), "asleep"), (WorkerFacts(), "lists no models")],
)
async def test_a_worker_that_cannot_serve_is_a_problem(found, facts, problem):
    report = await found(facts)
    assert report.problem == problem
    assert report.fix


@pytest.fixture
async def embedded():
    """Start embedded workers that answer without waiting."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(**settings):
            running = await stack.enter_async_context(serving(WorkerSettings(time_scale=0, **settings)))
            return running.url

        yield start


async def examined(*urls):
    return await examine.examine_all(Config(workers=tuple(WorkerConfig(url=url) for url in urls)), requests=True)


async def test_embedded_worker_with_everything_on(embedded):
    (report,) = await examined(await embedded())
    assert (report.problem, report.residency, report.reports_cached_tokens) == (None, Residency.EXACT, True)
    assert report.advice == []
    assert report.facts.caches[0].capacity_tokens > 0
    assert all("rendered locally" in described for described in report.prompts.values())
    assert report.chats == {report.facts.models[0].id: dict.fromkeys(CHATS, "alike")}


TEMPLATE = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\n' }}{% endfor %}"


async def test_a_worker_with_another_chat_template_is_not_exact(embedded, inside):
    url = await embedded(chat_template=TEMPLATE)
    (report,) = await examined(url)
    model = report.facts.models[0].id
    assert report.residency is Residency.APPROXIMATE
    assert report.reason.startswith(f"the worker renders chats of {model} differently (a question: ")
    assert flags(report) == [f"models.{model}.chat_template (setting of warmroute serve)"]
    assert "alike" not in report.chats[model].values()
    ran = await asyncio.to_thread(inside, "check", "--worker", url)
    assert f"chat of {model}, a question: " in ran.stdout and "exact:" not in ran.stdout


async def test_without_requests_no_chat_is_compared(embedded):
    config = Config(workers=(WorkerConfig(url=await embedded(chat_template=TEMPLATE)),))
    (report,) = await examine.examine_all(config, requests=False)
    assert (report.residency, report.chats) == (Residency.EXACT, {})
    assert report.reason == "publishes KV events; chats are not compared without requests"


async def test_a_server_of_openais_api_alone_is_usable(embedded):
    (report,) = await examined(await embedded(openai_only=True, kv_events=False, prompt_tokens_details=False))
    assert (report.problem, report.residency, report.reports_cached_tokens) == (None, Residency.APPROXIMATE, False)
    assert report.facts.version is None and report.facts.caches == {}


async def test_the_whole_command_on_an_embedded_worker(embedded, warmroute):
    url = await embedded(prompt_tokens_details=False)
    ran = await asyncio.to_thread(warmroute, "check", "--worker", url)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "the settings are valid" in ran.stdout
    assert "exact: publishes KV events" in ran.stdout
    assert "--enable-prompt-tokens-details" in ran.stdout


async def test_a_report_as_json(embedded, inside):
    url = await embedded(prompt_tokens_details=False)
    document = json.loads((await asyncio.to_thread(inside, "check", "--worker", url, "--json", "--no-requests")).stdout)
    assert document["problems"] == []
    (worker,) = document["workers"]
    assert (worker["residency"], worker["reports_cached_tokens"]) == ("exact", None)


async def test_a_worker_that_wants_a_key(guarded):
    async with guarded("sk-5371") as worker:
        without, wrong, right = await examine.examine_all(
            Config(workers=tuple(WorkerConfig(url=worker.url, api_key=key) for key in (None, "sk-other", "sk-5371"))),
            requests=True,
        )
    assert without.problem == "requires an API key: /v1/models answered 401"
    assert "workers[0].api_key in the file" in without.fix
    assert f'WARMROUTE_WORKERS=\'[{{"url": "{worker.url}", "api_key": "KEY"}}]\'' in without.fix
    assert wrong.problem == "refuses the key in workers[1].api_key: /v1/models answered 401"
    assert "sk-other" not in str(wrong)
    assert (right.problem, right.residency, right.reports_cached_tokens) == (None, Residency.EXACT, True)
    assert "sk-5371" not in str(right)


async def test_a_key_of_the_environment_is_used_and_not_shown(guarded, inside):
    async with guarded("sk-5371") as worker:
        ran = await asyncio.to_thread(inside, "check", "--worker", worker.url)
        assert ran.returncode == 1
        assert f"--worker: worker {worker.bound.url.removeprefix('http://')}: requires an API key" in ran.stderr
        env = {"WARMROUTE_WORKERS": json.dumps([{"url": worker.url, "api_key": "sk-5371"}])}
        ran = await asyncio.to_thread(lambda: inside("check", env=env))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "sk-5371" not in ran.stdout


async def test_a_server_without_a_models_list_is_a_problem(monkeypatch):
    async def probe(*_, **__):
        return WorkerFacts()

    async def get(*_):
        raise examine.ProbeError("/v1/models gave no answer within 2 s")

    monkeypatch.setattr(examine, "probe", probe)
    monkeypatch.setattr(examine.WorkerClient, "get", get)
    (report,) = await examine.examine_all(Config(workers=(WorkerConfig(url="http://a:1"),)), requests=False)
    assert report.problem == "/v1/models gave no answer within 2 s"


@pytest.fixture
def model_dir(tmp_path):
    """A copy of the shipped model's tokenizer, to be broken."""
    return shutil.copytree(shipped_model_dir(), tmp_path / "model")


@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_named_tokenizer_that_does_not_parse_is_an_error(inside, model_dir, command):
    (model_dir / "tokenizer.json").write_text('{"version": "1.0", "model": ')
    ran = inside(command, "--model-dir", "model", "--port", "0", "--admin-port", "0")
    assert ran.returncode == 2
    assert ran.stderr.startswith("warmroute: --model-dir: cannot be parsed: model/tokenizer.json: ")
    assert "; replace the file with the model's own" in ran.stderr


def test_each_named_file_that_does_not_parse_is_placed(inside, model_dir, tmp_path):
    (tmp_path / "bad.json").write_text("{}")
    (tmp_path / "bad.jinja").write_text("{% if %}")
    (tmp_path / "w.yaml").write_text(
        "models:\n  a:\n    dir: model\n    chat_template: bad.jinja\ntokenizer: bad.json\n"
    )
    found = json.loads(inside("check", "--config", "w.yaml", "--json").stdout)["problems"]
    assert [problem["place"] for problem in found] == ["w.yaml:4:5", "w.yaml:5:1"]
    assert "bad.json: " in found[1]["problem"] and "chat template does not compile" in found[0]["problem"]


def test_a_named_folder_that_a_worker_must_tokenise_is_no_error(inside, model_dir):
    (model_dir / "config.json").write_text('{"architectures": ["MistralForCausalLM"]}')
    (model_dir / "tekken.json").write_text("{}")
    (model_dir / "consolidated.safetensors").write_bytes(b"")
    assert inside("check", "--model-dir", "model").returncode == 0


async def test_a_broken_tokenizer_that_was_found_by_itself_is_no_error(embedded, model_dir):
    (model_dir / "tokenizer.json").write_text("{}")
    url = await embedded(model_name=str(model_dir))
    (report,) = await examined(url)
    assert report.problem is None and report.facts is not None


async def test_a_model_that_a_worker_tokenises_is_named_with_the_price(embedded, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    probe = examine.probe

    async def named_as_on_the_hub(*arguments, **options):
        facts = await probe(*arguments, **options)
        return replace(facts, models=tuple(replace(card, root="org/m") for card in facts.models))

    monkeypatch.setattr(examine, "probe", named_as_on_the_hub)
    url = await embedded()
    with hub(m=Path(shipped_model_dir())) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        (report,) = await examined(url)
        why = "tokenizer files of org/m are not fetched: HF_HUB_OFFLINE is set"
        assert list(report.prompts.values()) == [f"worker's /tokenize ({why})"]
        (advice,) = [each for each in report.advice if "models.NAME.dir" in each.flag]
        assert advice.why.endswith("47 ms instead of 8.6 for a prompt of 8,000 tokens")
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        (report,) = await examined(url)
        assert next(iter(report.prompts.values())).endswith(f", fetched from {server.url}")
        assert not [each for each in report.advice if "models.NAME.dir" in each.flag]
