"""`warmroute picker-conformance`: its options, reports and exit codes."""

import asyncio
import json
import sys
from contextlib import asynccontextmanager

import pytest

from router.cli.main import main
from tests.router.picker.conformance.manners import Manners
from tests.router.picker.conformance.scripted_picker import ScriptedPicker, serve
from tests.router.picker.conformance.scripted_pool import ENDPOINTS

POOL = [word for endpoint in ENDPOINTS for word in ("--endpoint", endpoint)]
QUICK = ["--case", "A2", "--case", "A3", "--case", "A6"]


@pytest.fixture
def command(capsys):
    async def run(*words):
        try:
            code = await asyncio.to_thread(main, ["picker-conformance", *words])
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return run


@asynccontextmanager
async def picker(**manners):
    async with serve(ScriptedPicker(Manners(**manners))) as address:
        yield address


async def test_a_picker_that_conforms(command, tmp_path):
    files = tmp_path / "report.json", tmp_path / "report.md"
    async with picker(clears_route_cache=False) as address:
        code, out, err = await command(
            *(address, *POOL, *QUICK, "--case", "H77", "--json", str(files[0]), "--markdown", str(files[1]))
        )
    assert (code, err) == (0, "")
    assert "fail  A6   SHOULD `clear_route_cache` is set.\n                 clear_route_cache is false" in out
    assert out.rstrip().endswith("The picker conforms: no case of level MUST failed.")
    report = json.loads(files[0].read_text())
    assert report["conforms"] and report["endpoints"] == list(ENDPOINTS)
    assert report["summary"] == {
        "core": {"MUST": {"pass": 2, "fail": 0, "skip": 1}, "SHOULD": {"pass": 0, "fail": 1, "skip": 0}}
    }
    case = {one["id"]: one for one in report["cases"]}["A6"]
    assert case.pop("ms") > 0
    assert case == {
        "id": "A6",
        "title": "`clear_route_cache` is set.",
        "ref": "X",
        "level": "SHOULD",
        "profile": "core",
        "result": "fail",
        "detail": "clear_route_cache is false",
    }
    page = files[1].read_text()
    assert "| core | MUST | 2 | 0 | 1 |" in page
    assert "| A6 | SHOULD | **fail** | `clear_route_cache` is set. | X | clear_route_cache is false |" in page


async def test_a_failed_must_is_exit_code_1(command):
    async with picker(destination_metadata=False) as address:
        code, out, _ = await command(address, *QUICK)
    assert code == 1
    assert out.rstrip().endswith("The picker does not conform.")


async def test_nothing_but_skipped_cases_is_no_conformance(command):
    async with picker() as address:
        code, out, _ = await command(address, "--case", "A5")
    assert code == 1
    assert (
        "skip  A5   MUST   The pick is `ip:port` of the pool.\n                 needs 1 of the pool's endpoints" in out
    )
    assert out.rstrip().endswith("The picker was not tested: no case passed.")


async def test_the_hook_is_a_command(command, tmp_path):
    log = tmp_path / "log"
    script = tmp_path / "pool.sh"
    script.write_text(f'echo "$*" >> {log}\n')
    async with picker() as address:
        code, out, _ = await command(address, *POOL, "--case", "E47", "--hook", f"sh {script}")
    assert code == 1  # the script changes nothing
    assert "requests got 10.0.0.1:8000" in out
    assert log.read_text() == "not-ready 10.0.0.1:8000\nready 10.0.0.1:8000\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["localhost"], "HOST:PORT: 'localhost' is no address; write HOST:PORT, as in 127.0.0.1:9002"),
        (["a:1", "--endpoint", "b:2"], "--endpoint: 'b' does not appear to be an IPv4 or IPv6 address; write IP:PORT"),
        (["a:1", "--health", "9003"], "--health: '9003' is no address"),
        (["a:1", "--case", "b13"], "--case: no case 'b13'; write B13"),
        (["a:1", "--hook", "'"], '--hook: "\'": No closing quotation'),
        (["a:1", "--hook", ""], "--hook: the command is empty; name a program"),
        (["a:1", "--timeout", "0"], "--timeout: 0 is out of range; write seconds up to 600"),
        (["a:1", "--adapter", "x"], "--adapter: 'x' is not NAME=VALUE"),
        (["a:1", "--rewrite", "x=y:0"], "--rewrite: 'y:0' is not MODEL:WEIGHT; write --rewrite x=MODEL:1"),
        (["a:1", "--ca-file", "/no/such.pem"], "--ca-file: /no/such.pem: No such file or directory; name a file"),
        (["a:1", "--json", "/no/such/file"], "--json: /no/such/file: No such file or directory; name another file"),
        (["127.0.0.1:1", "--timeout", "0.2"], "127.0.0.1:1: no HTTP/2 connection to 127.0.0.1:1 without TLS; start"),
        (["a:1", "--profile", "all"], "argument --profile: invalid CaseProfile value: 'all'"),
    ],
)
async def test_a_wrong_option_is_exit_code_2(command, words, said):
    code, out, err = await command(*words)
    assert (code, out) == (2, "")
    assert said in err


async def test_without_grpc_it_names_the_extra(command, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("router.picker.conformance")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    code, _, err = await command("127.0.0.1:9002")
    assert code == 2
    assert "picker-conformance: gRPC cannot be loaded" in err
    assert err.rstrip().endswith("run pip install 'warmroute[picker]'")
