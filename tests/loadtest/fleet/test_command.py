import json
import shlex
import signal
import subprocess

import httpx
import psutil
import pytest
from rich.console import Console

from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import warmroute
from loadtest.fleet.run import show
from loadtest.fleet.vllm import VllmWorker
from router.cli.main import main
from router.config.load import load
from tests.support.commands import run_here
from tests.support.fleets import fleet, printed_gateway
from tests.support.waiting import block_until

URL = r"^worker (http://\S+)"


def test_workers_get_their_flags_and_one_that_dies_leaves_the_others_until_the_last(tmp_path):
    first = free_ports(2)
    flags = ["--time-scale", "0", "--kv-gib", "0.03125", "--base-port", str(first), "--logs", str(tmp_path / "logs")]
    process = fleet("--simulated", "2", *flags, "--", "--max-model-len", "4096")
    urls = [process.wait_for(URL).group(1) for _ in range(2)]
    assert urls == [f"http://127.0.0.1:{first}", f"http://127.0.0.1:{first + 1}"]
    process.wait_for("warmroute serve --worker http://.* --worker http://")
    for url in urls:
        card = httpx.get(f"{url}/v1/models").json()["data"][0]
        assert card["max_model_len"] == 4096
        assert 'num_gpu_blocks="2048"' in httpx.get(f"{url}/metrics").text
    process.wait_for("Ctrl-C")
    victim, last = psutil.Process(process.pid).children()
    victim.kill()
    process.wait_for(r"warmroute fleet: worker \d ended with code -9", 15.0)
    gone = process.wait_for(r"(http://\S+) is gone; 1 of 2 workers serve on", 15.0).group(1)
    (left,) = [url for url in urls if url != gone]
    assert process.alive and httpx.get(f"{left}/health").status_code == 200
    last.kill()
    process.wait_for(r"warmroute fleet: worker \d ended with code -9", 15.0)
    assert process.wait(15.0) == 1
    assert "worker http://" in (tmp_path / "logs" / "worker-0.log").read_text()


def test_workers_with_roles_hand_over_as_the_printed_command_says_and_go_with_ctrl_c():
    process = fleet("--simulated", "3", "--time-scale", "0", "--roles", "prefill=1,decode=1")
    urls = [process.wait_for(rf"^worker (http://\S+) {role}$").group(1) for role in ("prefill", "decode", "mixed")]
    command = shlex.split(process.wait_for(r"^warmroute serve (--set .*)$").group(1))
    shown = subprocess.run(warmroute("config", "--json", *command), capture_output=True, timeout=60, check=True)
    config = json.loads(shown.stdout)
    assert config["handover"]["connector"] == "nixl_pull"
    assert [(worker["url"], worker["role"]) for worker in config["workers"]] == list(
        zip(urls, ("prefill", "decode", "mixed"), strict=True)
    )
    body = {"prompt": [1, 2, 3], "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    assert httpx.post(f"{urls[0]}/v1/completions", json=body).json()["kv_transfer_params"]["do_remote_prefill"]
    process.wait_for("Ctrl-C")
    children = psutil.Process(process.pid).children(recursive=True)
    psutil.Process(process.pid).send_signal(signal.SIGINT)
    gone, alive = psutil.wait_procs(children, timeout=15)
    assert len(gone) == 3 and not alive
    assert process.wait(15.0) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("connector", [
    "nixl_push", "mooncake", "moriio_pull", "shared_store", "lmcache", "offloading_peer",
])  # fmt: skip
def test_a_fleet_with_a_named_connector_hands_over_as_the_printed_command_says(connector):
    process = fleet(
        "--simulated", "2", "--time-scale", "0", "--roles", "prefill=1,decode=1", "--kv-connector", connector
    )
    prefill = process.wait_for(URL).group(1).removeprefix("http://")
    gateway, public, admin = printed_gateway(process, "--set", 'auth.allow=["transfer_params"]')
    body = {"model": "warmroute-simulated", "prompt": list(range(300, 1_000)), "max_tokens": 4}

    def handed_over():
        answer = httpx.post(f"{public}/v1/completions", json=body, headers={"x-prefiller-host-port": prefill})
        assert answer.status_code == 200, answer.text
        return 'warmroute_handovers_total{outcome="handed_over"}' in httpx.get(f"{admin}/metrics").text

    block_until(handed_over, 20.0)  # the gateway first asks what it has to know of the prefill worker
    gateway.stop()
    process.stop()


@pytest.mark.parametrize(
    ("connector", "roles", "handover", "first"),
    [
        ("mooncake", {"prefill": 1}, {"connector": "mooncake"}, {"mooncake_bootstrap_port": "8101"}),
        ("lmcache", {"prefill": 1}, {"connector": "lmcache"}, {}),
        ("offloading_peer", {}, {"pulls": "offloading_peer"}, {"kv_peer": "8101"}),
        ("offloading_peer", {"prefill": 1}, {"connector": "offloading_peer"}, {"kv_peer": "8101"}),
    ],
)
def test_the_printed_command_says_what_the_connector_needs(capsys, connector, roles, handover, first):
    show(Console(), ["http://127.0.0.1:8101", "http://127.0.0.1:8102"], roles, connector)
    (line,) = [one for one in capsys.readouterr().out.splitlines() if one.startswith("warmroute serve ")]
    given = dict(one.split("=", 1) for one in shlex.split(line)[3::2])
    config = load(given, {}, None, ()).config
    assert {name: getattr(config.handover, name) for name in handover} == handover
    assert config.workers[0].role == ("prefill" if roles else "mixed")
    assert config.workers[0].labels == first


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "one of the arguments --vllm --simulated is required"),
        (("--vllm", "0"), "'0' is not a whole number from 1 to 64"),
        (("--simulated", "2", "--base-port", "0"), "'0' is not a port from 1 to 65535"),
        (
            ("--simulated", "2", "--base-port", "65535"),
            "--base-port 65535 gives the last worker port 65536, above 65535",
        ),
        (("--simulated", "2", "--kv-gib", "0"), "'0' is not a number above 0"),
        (("--simulated", "2", "--time-scale", "-1"), "'-1' is not a number of at least 0"),
        (("--simulated", "2", "--jitter", "1"), "'1' is not a part of 1; write a number from 0 to below 1"),
        (("--vllm", "1", "--model-dir", "/nowhere"), "--model-dir /nowhere has no config.json"),
        (("--vllm", "1", "--vllm-env", "/nowhere"), "no vllm command (/nowhere/bin/vllm); run `make vllm-env`"),
        (("--simulated", "1", "--vllm-env", "x"), "--vllm-env goes with --vllm"),
        (("--simulated", "2", "--roles", "mixed=1"), "'mixed=1' is not a role"),
        (("--simulated", "2", "--roles", "prefill"), "'' is not a whole number from 1 to 64"),
        (("--simulated", "2", "--roles", "prefill=1,decode=2"), "--roles names 3 workers; --simulated 2 starts fewer"),
        (
            ("--vllm", "2", "--roles", "prefill=1,decode=1", "--kv-connector", "mooncake"),
            "--vllm models nixl_pull alone; --kv-connector mooncake goes with --simulated",
        ),
        (("--simulated", "2", "--kv-connector", "mooncake"), "add --roles, as prefill=1,decode=1"),
        (("--simulated", "2", "--kv-connector", "p2p"), "invalid choice: 'p2p'"),
        (("--vllm", "2", "--roles", "prefill=2,decode=1"), "--roles names 3 workers; --vllm 2 starts fewer"),
        (("--simulated", "1", "--", "--no-such-flag"), "unrecognized arguments: --no-such-flag"),
    ],
)
def test_a_wrong_flag_is_refused(capsys, arguments, said):
    code, printed = run_here(capsys, main, ["fleet", *arguments])
    assert code != 0 and said in printed


def test_a_vllm_command_line_ends_with_the_users_flags(tmp_path):
    worker = VllmWorker(executable=tmp_path / "vllm", flags=("--max-model-len", "100"), replay=False)
    command = worker.command(8000, 5557)
    assert command[:2] == [str(tmp_path / "vllm"), "serve"] and command[-2:] == ["--max-model-len", "100"]
    config = command[command.index("--kv-events-config") + 1]
    assert '"endpoint": "tcp://*:5557"' in config and "replay_endpoint" not in config
    variables = worker.variables()
    assert variables["WARMROUTE_CLOCK"] == "1" and variables["VLLM_SERVER_DEV_MODE"] == "1"
    own = VllmWorker(executable=tmp_path / "vllm", model_dir=tmp_path, dev_mode=False, kv_events=False)
    assert str(tmp_path) in own.command(1, 2) and "--kv-events-config" not in own.command(1, 2)
    assert "VLLM_SERVER_DEV_MODE" not in own.variables()
    handing = VllmWorker(executable=tmp_path / "vllm", kv_connector=True)
    assert "backends.clock.connector" in handing.command(1, 2)[-1]
    assert handing.variables()["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"
