"""The commands that operate a running gateway, against a real admin port."""

import dataclasses
import json

import msgspec
import pytest

from router.cli.main import main
from router.diagnosis.condition import Severity
from router.diagnosis.diagnose import ServiceLevel
from router.diagnosis.finding import Finding, table
from router.workers.operations import WorkerOutcome
from tests.router.placement.test_what_if import played

ADDED = "127.0.0.1:9"


async def test_workers_are_added_drained_listed_and_removed(run, system):
    code, out, err = await run("workers", "add", f"http://{ADDED}", "--label", "rack=7")
    assert (code, "added http://127.0.0.1:9" in out) == (0, True)
    assert "state_dir is not set" in err
    drained = await run("workers", "drain", ADDED, "--migrate-after", "20s")
    assert drained[:2] == (0, f"{ADDED} gets no new requests\n")
    assert system.fleet.get(ADDED).migrate_after_s == 20
    listed = (await run("workers", "list"))[1]
    assert ADDED in listed and "draining" in listed and "rack=7" in listed
    document = json.loads((await run("workers", "list", "-o", "json"))[1])
    assert [worker["id"] for worker in document["workers"]] == [ADDED]
    assert (await run("workers", "undrain", ADDED))[0] == 0
    assert (await run("workers", "remove", ADDED))[1] == f"removed {ADDED}\n"
    assert system.fleet.endpoints == ()


async def test_settings_of_a_worker_are_set_listed_and_taken_back(run, system):
    await run("workers", "add", f"http://{ADDED}", "--name", "left", "--weight", "2", "--role", "decode")
    listed = (await run("workers", "list"))[1]
    assert "left" in listed and "decode" in listed
    words = ("weight=0.5", "labels.rack=7", "labels.row=", "maintenance=true", "kv_events.endpoint=tcp://a:1", "role=")
    assert (await run("workers", "set", ADDED, *words))[:2] == (0, f"changed {ADDED}\n")
    worker = system.control.state.settings.workers[ADDED]
    assert (worker.name, worker.weight, worker.role, worker.maintenance) == ("left", 0.5, "mixed", True)
    assert (worker.labels, worker.kv_events.endpoint) == ({"rack": "7"}, "tcp://a:1")
    assert (await run("workers", "set", ADDED, "labels=", "kv_events=", "maintenance=false"))[0] == 0
    worker = system.control.state.settings.workers[ADDED]
    assert (worker.labels, worker.kv_events, worker.maintenance) == ({}, None, False)
    code, _, err = await run("workers", "set", ADDED, "weight=heavy")
    assert (code, "$.weight" in err) == (1, True)
    code, _, err = await run("workers", "set", ADDED, "weight")
    assert (code, "'weight' is not KEY=VALUE" in err) == (2, True)
    code, _, err = await run("workers", "set", ADDED, "labels=x", "labels.a=b", "speed=2")
    assert (code, "unknown field `speed`" in err) == (1, True)


async def test_operations_on_workers_print_a_line_for_each(run, system, monkeypatch):
    await run("workers", "add", f"http://{ADDED}", "--name", "left")
    asked = []

    async def operate(wanted, workers):
        asked.append((wanted.operation, list(workers)))
        return [WorkerOutcome(worker, "refused", "not offered") for worker in workers]

    code, out, _ = await run("workers", "reset-cache", "--all", "--dry-run")
    assert (code, "dry run" in out, "left" in out) == (0, True, True)
    monkeypatch.setattr(system.view, "operate", operate)
    code, out, _ = await run("workers", "reset-cache", "--all")
    assert (code, "refused" in out, "not offered" in out) == (1, True, True)
    code, out, _ = await run("workers", "reset-cache", ADDED)
    assert (code, ADDED in out, "not offered" in out) == (1, True, True)
    assert asked == [("reset-prefix-cache", [ADDED])] * 2
    for words in (("pause", ADDED), ("load-lora", ADDED, "--lora-name", "x", "--lora-path", "/x")):
        code, _, err = await run("workers", *words)
        assert (code, "worker_operations" in err) == (1, True)
    code, _, err = await run("workers", "pause")
    assert (code, "one worker or a selector is needed" in err) == (2, True)
    code, _, err = await run("workers", "unload-lora", "--lora-name", "x", "--label", "rack=7")
    assert (code, "unload-lora is not in the setting" in err) == (1, True)


async def test_a_dry_run_prints_the_differences(run, system):
    code, out, _ = await run("workers", "add", f"http://{ADDED}", "--dry-run")
    assert (code, f"workers[{ADDED}]" in out) == (0, True)
    assert system.fleet.endpoints == ()
    assert (await run("policy", "set", "marginal_cost", "--dry-run"))[1] == "no difference\n"
    assert "policy.rule" in (await run("policy", "set", "lpwl", "--dry-run"))[1]
    document = json.loads((await run("policy", "set", "lpwl", "--dry-run", "-o", "json"))[1])
    assert document["dry_run"] and system.core.policies.default.spec.rule == "marginal_cost"


async def test_what_if_prints_how_many_would_have_gone_elsewhere(run, system, monkeypatch):
    assert (await run("policy", "what-if", "lpwl"))[1] == "no decision is in memory\n"
    monkeypatch.setattr(system.view, "core", played("round_robin"))
    code, out, _ = await run("policy", "what-if", "lpwl")
    assert (code, "of 48 decisions would have gone elsewhere" in out, "mean predicted TTFT" in out) == (0, True, True)
    document = json.loads((await run("policy", "what-if", "chwbl", "--param", "load_factor=2", "-o", "json"))[1])
    assert document["decisions"] == 48
    code, _, err = await run("policy", "what-if", "nothing")
    assert (code, "no such policy" in err) == (1, True)


async def test_a_policy_is_set_and_shown(run, system):
    assert (await run("policy", "set", "chwbl", "--param", "load_factor=1.5", "--hold"))[1] == "the policy is chwbl\n"
    assert system.control.state.settings.policy.params == {"load_factor": 1.5}
    assert system.control.state.settings.policy.hold is True
    shown = (await run("policy", "show"))[1]
    assert "chwbl" in shown and "load_factor" in shown and "round_robin" in shown
    assert json.loads((await run("policy", "show", "-o", "json"))[1])["rule"] == "chwbl"


async def test_revisions_are_listed_shown_and_restored(run, system):
    await run("policy", "set", "lpwl")
    listed = (await run("revisions", "list"))[1]
    assert "chose policy lpwl" in listed and "started" in listed
    assert "policy.rule" in (await run("revisions", "show", "2"))[1]
    assert (await run("revisions", "restore", "1"))[1] == "restored revision 1\n"
    assert system.core.policies.default.spec.rule == "marginal_cost"
    assert system.control.state.version == 3
    code, _, err = await run("revisions", "show", "99")
    assert (code, "there is no revision 99" in err) == (1, True)


async def test_a_reload_prints_what_it_did(run, system):
    read = msgspec.structs.replace(system.control.config, access_log=True)
    system.control._sources = dataclasses.replace(system.control._sources, read=lambda: read)
    code, out, _ = await run("reload")
    assert (code, out.splitlines()[0]) == (0, "no difference")
    assert "access_log: does not take effect now; restart the gateway" in out


async def test_a_stale_tag_and_a_wrong_value_are_refused(run):
    code, _, err = await run("policy", "set", "lpwl", "--if-match", '"x.1"')
    assert (code, "412 Precondition Failed" in err) == (1, True)
    code, _, err = await run("policy", "set", "lpvl")
    assert (code, "422" in err and "lpwl" in err) == (1, True)
    assert (await run("workers", "add", "http://a:1", "--label", "rack"))[0] == 2


def test_a_gateway_that_is_not_there_is_named(capsys):
    assert main(["workers", "list", "--url", "http://127.0.0.1:1"]) == 1
    assert "no answer from the admin port" in capsys.readouterr().err


async def test_routes_and_further_policies_are_set_listed_and_removed(run, system, tmp_path):
    assert (await run("policy", "set", "lpwl", "--name", "batch", "--hold"))[1] == "policy batch is lpwl\n"
    assert "batch" in (await run("policy", "show"))[1]
    file = tmp_path / "routes.yaml"
    file.write_text(
        "routes:\n"
        "- {name: long, match: {prompt_tokens: '>32000', stream: true}, policy: batch, max_requests: 7}\n"
        "- {name: rest, split: {default: 9, batch: 1}, shadow: [lmetric]}\n"
    )
    assert "routes" in (await run("routes", "set", str(file), "--dry-run"))[1]
    assert system.control.state.settings.routes == ()
    assert (await run("routes", "set", str(file)))[1] == "2 routes\n"
    listed = (await run("routes", "list"))[1]
    for text in ("long", "prompt_tokens: >32000, stream: true", "batch", "7", "default 9, batch 1", "lmetric"):
        assert text in listed
    assert json.loads((await run("routes", "list", "--json"))[1])["routes"][0]["match"]["prompt_tokens"] == ">32000"
    shown = (await run("routes", "shadow", "rest"))[1]
    assert "route rest: default, batch decided; last 600 s" in shown
    assert "lmetric" in shown
    code, _, err = await run("policy", "remove", "batch")
    assert (code, "no policy is called batch" in err) == (1, True)
    file.write_text("[]")
    assert (await run("routes", "set", str(file)))[0] == 0
    assert (await run("policy", "remove", "batch"))[1] == "removed policy batch\n"


@pytest.mark.parametrize("text", ["routes: 3", "{", "hello"])
async def test_a_file_without_routes_is_named(run, tmp_path, text):
    file = tmp_path / "routes.yaml"
    file.write_text(text)
    code, _, err = await run("routes", "set", str(file))
    assert (code, str(file) in err) == (2, True)


async def test_diagnose_prints_findings_service_levels_and_what_was_not_checked(run, system, monkeypatch):
    code, out, _ = await run("diagnose")
    assert code == 0
    assert "0 requests ended" in out and "OUTAGE, no worker ready: No worker is ready" in out
    assert "Why: the fleet has no worker" in out and "- add a worker: `warmroute workers add" in out
    assert "Not checked: prefix reuse needs 50 further turns of sessions; there were 0." in out
    evidence = table("Gaps", ["worker", "p99 s"], [["a:1", 0.25]])
    finding = Finding(
        "decode_scheduling", Severity.ADVICE, "Streams stutter.", "On a:1.", [evidence], ["fewer streams"]
    )
    level = ServiceLevel("chat", "ttft", 900, 100, out=True)
    found = msgspec.structs.replace(
        await system.view.diagnosis(), requests=1_234, findings=[finding], service_levels=[level]
    )

    async def diagnosis():
        return found

    monkeypatch.setattr(system.view, "diagnosis", diagnosis)
    out = (await run("diagnose"))[1]
    assert "1,234 requests ended" in out and "ADVICE, decode scheduling: Streams stutter." in out
    assert "0.25" in out and "- fewer streams" in out and "No check has found" not in out
    assert "Route chat: ttft is out of its service level: 900 of 1,000 streams met it." in out
    assert "Prompts by length" not in out and "Prompts by length" in (await run("diagnose", "--figures"))[1]
    document = json.loads((await run("diagnose", "--json"))[1])
    assert document["findings"][0]["check"] == "decode_scheduling"
    assert (await run("diagnose", "--exit-code"))[0] == 3
    assert document["thresholds"]["gap_s"] == 0.1


async def test_top_prints_the_fleet_once_where_it_cannot_follow(run, system, monkeypatch):
    await run("workers", "add", f"http://{ADDED}", "--name", "left", "--role", "decode")
    code, out, _ = await run("top")
    assert code == 0
    assert "1 workers: 1 starting" in out and "left" in out and "decode" in out and "unknown" in out
    finding = Finding("kv_capacity", Severity.ADVICE, "The KV cache is full.", "", [], [])
    level = ServiceLevel("chat", "tpot", 10, 90, out=True)
    found = msgspec.structs.replace(await system.view.diagnosis(), findings=[finding], service_levels=[level])

    async def diagnosis():
        return found

    monkeypatch.setattr(system.view, "diagnosis", diagnosis)
    out = (await run("top", "--once"))[1]
    assert "ADVICE: The KV cache is full." in out and "route chat: 10 of 100 streams met their tpot" in out
    assert json.loads((await run("top", "-o", "json"))[1])["rows"][0]["id"] == ADDED


async def test_the_planner_says_what_to_set_and_what_is_wrong(run):
    words = ("planner", "start", "--candidate", "llama-3.1-8b-a100:price=2", "--goodput", "ttft:500")
    for code, _, err in (await run("planner", "show"), await run(*words)):
        assert (code, "set decision_log.path" in err) == (1, True)
    for wrong in ((*words[:4], "--goodput", "latency:5"), (*words[:3], "llama-3.1-8b-a100:gpus=2", *words[4:])):
        with pytest.raises(SystemExit, match="2"):
            await run(*wrong)
