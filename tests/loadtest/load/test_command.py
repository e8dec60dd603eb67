"""The whole command against an embedded worker in this process: files, tables, and exit codes."""

import argparse
import asyncio
import csv
import json
from math import inf

import pytest

from backends.simulated.serving import serving
from backends.simulated.settings import WorkerSettings
from loadtest.load import command
from loadtest.load.arrivals import Rates
from loadtest.load.drive import Batch
from loadtest.load.order import TrafficClass
from loadtest.load.orders import order_of
from loadtest.load.run import about, result_file
from loadtest.workload.errors import WorkloadError
from tests.loadtest.load.test_results import made

SMALL = ("--num-prompts", "30", "--input-len", "32", "--output-len", "3")
VLLM_KEYS = """date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness
    max_concurrency duration completed failed total_input_tokens total_output_tokens request_throughput
    request_goodput output_throughput total_token_throughput max_concurrent_requests"""


@pytest.fixture(autouse=True)
def busy_machine(monkeypatch):
    """Let no run of these tests be void: the worker shares the process, and the tests the machine."""
    monkeypatch.setattr("loadtest.load.steady.MOST_LAG", inf)


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    return parser.parse_args(["load", *arguments])


async def loaded(*arguments):
    async with serving(WorkerSettings(time_scale=0, kv_events=False)) as worker:
        args = parsed(worker.url, *SMALL, *arguments)
        return await asyncio.to_thread(args.run, args)


async def test_every_file_is_written_and_scripts_for_vllm_bench_can_read_the_json(tmp_path, capsys):
    files = [f"--{kind}={tmp_path / kind}" for kind in ("records", "csv", "html")]
    out = ("--save-result", "--save-detailed", "--result-dir", str(tmp_path), "--result-filename", "r.json")
    await loaded("--request-rate", "200", *files, *out, "--metadata", "gpu=none", "--metric-percentiles", "99,99.9")
    found = json.loads((tmp_path / "r.json").read_text())
    assert [key for key in VLLM_KEYS.split() if key not in found] == []
    for name in ("ttft", "tpot", "itl", "e2el"):
        assert found[f"p99_{name}_ms"] >= found[f"median_{name}_ms"] >= 0.0
        assert {f"mean_{name}_ms", f"std_{name}_ms", f"p99.9_{name}_ms"} <= found.keys()
    assert (found["completed"], found["request_rate"], found["gpu"]) == (30, 200.0, "none")
    assert found["input_lens"] == [32] * 30 and found["output_lens"] == [3] * 30
    assert found["ttfts"][0] < 5.0 and len(found["itls"][0]) == 2
    rows = [json.loads(line) for line in (tmp_path / "records").read_text().splitlines()]
    assert len(rows) == 30 and {"intended_s", "sent_s", "token_s", "outcome"} <= rows[0].keys()
    table = dict(list(csv.reader((tmp_path / "csv").open()))[1:])
    assert table["completed"] == "30" and "groups.turn 1.requests" in table
    page = (tmp_path / "html").read_text()
    assert page.count("<svg") == 5 and "src=" not in page and "href=" not in page
    said = " ".join(capsys.readouterr().out.split())
    assert "an event with the role alone does not count" in said and "30 of 30 requests complete" in said


@pytest.mark.parametrize(("limit_ms", "code"), [("0.000001", 1), ("60000", 2)])
async def test_a_goal_is_missed_or_not_decided_by_thirty_requests(limit_ms, code):
    assert await loaded("--max-concurrency", "2", "--goodput", f"ttft:{limit_ms}", "e2el:60000") == code


async def test_an_endpoint_that_refuses_every_request_is_not_met(capsys):
    assert await loaded("--model", "another", "--max-concurrency", "1", "--backend", "openai-chat") == 1
    assert "30 failed: refused: status 404" in " ".join(capsys.readouterr().out.split())


async def test_requests_before_the_run_do_not_count(capsys):
    assert await loaded("--num-warmups", "3", "--max-concurrency", "3") == 0
    assert "30 of 30 requests" in " ".join(capsys.readouterr().out.split())


def test_an_endpoint_that_does_not_answer_is_an_input_error(capsys):
    args = parsed("http://127.0.0.1:1")
    assert args.run(args) == 3
    assert "names no model at /v1/models" in capsys.readouterr().err


def test_a_warm_up_without_an_answer_is_an_input_error(capsys):
    args = parsed("http://127.0.0.1:1", "--model", "m", "--num-warmups", "1")
    assert args.run(args) == 3
    assert "no request of the warm-up was answered: unanswered" in capsys.readouterr().err


URL = "http://h:1"


def order(*arguments):
    return order_of(parsed(URL, *arguments), "m")


def test_flags_make_the_schedule():
    assert order("--request-rate", "4").rates == Rates.constant(4.0)
    assert order("--max-concurrency", "4").is_closed and order("--users", "4").is_closed
    assert not order("--max-concurrency", "4", "--request-rate", "2").is_closed
    assert order("--dataset-name", "generator:agents").timed
    assert not order("--dataset-name", "generator:agents", "--request-rate", "1").timed
    assert order("--request-rate", "inf").rates is None
    assert order("--request-rate", "1", "--burstiness", "inf").burstiness == inf
    assert (order().num_prompts, order("--duration", "2m", "--request-rate", "1").num_prompts) == (1000, None)


def test_flags_make_the_requests(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    one = order("--backend", "openai-chat", "--header", "a=b", "--extra-body", '{"top_k": 1}')
    assert (one.chat, one.endpoint, one.ignore_eos) == (True, "/v1/chat/completions", True)
    assert (one.headers, one.extra_body) == ({"authorization": "Bearer k", "a": "b"}, {"top_k": 1})
    assert not order("--dataset-name", "sharegpt").ignore_eos
    assert parsed("http://h:1/v1/").url == URL
    assert order("--class", "chat:3", "batch:1,x-class=b").classes[1] == TrafficClass("batch", 1.0, {"x-class": "b"})
    assert parsed(URL, "--goodput", "ttft:500", "tpot:50").goodput == {"ttft": 0.5, "tpot": 0.05}


def test_flags_make_the_dataset(tmp_path):
    flags = "--dataset-name prefix_repetition --num-prefixes 3 --prefix-len 0 --input-len 5 --output-len 6"
    one = order(*flags.split()).dataset
    assert (one.num_prefixes, one.prefix_len, one.input_len, one.output_len) == (3, 0, 5, 6)
    assert order("--dataset-name", "sharegpt", "--multi-turn", "--disable-shuffle").dataset.multi_turn
    assert order("--range-ratio", "0.5").dataset.range_ratio == 0.5
    series = tmp_path / "rates.csv"
    series.write_text("time_s,rate\n0,1\n60,4\n")
    assert order("--rate-series", str(series)).rates == Rates(((0.0, 1.0), (60.0, 4.0)))
    ramp = "--ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 3 --duration 9s"
    assert order(*ramp.split()).rates == Rates(((0.0, 1.0), (9.0, 3.0)))
    users = order("--users", "3", "--think-time", "2", "--session-header", "x-session")
    assert (users.users, users.think_s, users.session_header) == (3, 2.0, "x-session")


@pytest.mark.parametrize(
    ("flags", "idle"),
    [
        ("--max-concurrency 3 --users 2", "--max-concurrency"),
        ("--think-time 3 --request-rate 1", "--think-time"),
        ("--burstiness 2 --max-concurrency 3", "--burstiness"),
        ("--checkpoint-each 9s --request-rate 1", "--checkpoint-each"),
        ("--attainment 0.9", "--attainment"),
        ("--result-dir x", "--result-dir"),
        ("--dataset-name generator:agents --output-len 9", "--output-len"),
        ("--dataset-name trace --dataset-path x --input-len 9", "--input-len"),
        ("--dataset-name custom --dataset-path x --multi-turn", "--multi-turn"),
        ("--dataset-path x", "--dataset-path"),
        ("--num-prefixes 3 --prefix-len 9", "--num-prefixes"),
        ("--find goodput --goodput ttft:9 --duration 9s", "--duration"),
        ("--find knee --request-rate 3", "--request-rate"),
        ("--find knee --records FILE --users 3", "--records and --users"),
        ("--find knee --ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 3 --duration 9s", "--ramp"),
    ],
)
def test_flags_that_would_do_nothing_are_refused(flags, idle, tmp_path):
    with pytest.raises(WorkloadError, match=f"{idle}.* would do nothing with"):
        order(*flags.replace("FILE", str(tmp_path / "records")).split())


@pytest.mark.parametrize(
    "flags",
    [
        "--request-rate 1 --users 2",
        "--ramp-up-strategy linear --duration 9s",
        "--request-rate inf --duration 9s",
    ],
)
def test_schedules_that_contradict_each_other_are_refused(flags):
    with pytest.raises(WorkloadError):
        order(*flags.split())


@pytest.mark.parametrize(
    "flags",
    [
        "--goodput ttft",
        "--goodput x:5",
        "--duration 5y",
        "--extra-body []",
        "--header a",
        "--attainment 1",
        "--class a",
    ],
)
def test_wrong_values_are_named(flags, capsys):
    with pytest.raises(SystemExit):
        parsed(URL, *flags.split())
    assert flags.split()[1] in capsys.readouterr().err


async def test_a_search_for_goodput_needs_goals(capsys):
    assert await loaded("--find", "goodput") == 3
    assert "needs the goals" in capsys.readouterr().err


async def test_a_long_run_resumes_from_its_checkpoints(tmp_path, capsys):
    flags = ("--checkpoints", str(tmp_path), "--checkpoint-each", "0.3", "--request-rate", "30")
    assert await loaded("--duration", "0.7", *flags) == 0
    assert await loaded("--duration", "1.4", *flags) == 0
    said = capsys.readouterr().out
    assert "resumed after" in said and "growth over the whole run" in said
    assert await loaded("--duration", "0.5", *flags) == 3


def test_ctrl_c_ends_a_run_with_the_figures_so_far(monkeypatch, capsys):
    def interrupted(order, on_batch):
        records = [made(number) for number in range(5)]
        on_batch(Batch(records=records))
        raise KeyboardInterrupt

    monkeypatch.setattr("loadtest.load.run.drive", interrupted)
    args = parsed(URL, "--model", "m")
    assert args.run(args) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "interrupted" in said and "5 of 5 requests complete" in said
    args = parsed(URL, "--model", "m", "--num-warmups", "9")
    with pytest.raises(KeyboardInterrupt):  # before the run there is nothing to report
        args.run(args)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("--request-rate 2", "openai-2.0qps-m-D.json"),
        ("--max-concurrency 4 --backend openai-chat", "openai-chat-infqps-concurrency4-m-D.json"),
        ("--users 2 --label a", "a-m-D.json"),
        ("--dataset-name generator:agents", "openai-m-D.json"),
    ],
)
def test_the_file_is_named_as_vllm_bench_names_it(flags, name, tmp_path):
    args = parsed(URL, *flags.split(), "--result-dir", str(tmp_path))
    found = about(args, order(*flags.split())) | {"model_id": "org/m", "date": "D"}
    assert result_file(args, found) == tmp_path / name
