import argparse
import os
import re
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint, version

import pytest

from router.cli import main as cli
from router.config.problems import ConfigError, Problem

COMMANDS = ("serve", "check", "config", "worker")


def test_without_arguments_it_helps_and_fails(inside):
    ran = inside()
    assert ran.returncode == 2
    assert "usage: warmroute" in ran.stdout
    assert all(re.search(rf"(?m)^\s+{name}\s", ran.stdout) for name in COMMANDS)


def test_version_is_printed(warmroute):
    ran = warmroute("--version")
    assert (ran.returncode, ran.stdout.strip()) == (0, f"warmroute {version('warmroute')}")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command(inside, command):
    ran = inside(command, "--help")
    assert ran.returncode == 0
    assert f"usage: warmroute {command}" in ran.stdout
    assert "examples:" in ran.stdout
    assert "Traceback" not in ran.stderr


def test_help_of_serve_names_defaults_and_variables(inside):
    text = " ".join(inside("serve", "--help").stdout.split())
    assert "--port PORT public port (default 8000) [WARMROUTE_PORT]" in text
    assert "[WARMROUTE_POLICY__RULE]" in text
    assert "marginal_cost" in text
    for option in ("--worker", "--config", "--admin-host", "--admin-port", "--model-dir", "--tokenizer", "--uds"):
        assert option in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--port", "x"], '--port: port is "x" (text); write a whole number from 0 to 65535, such as 8000'),
        (["serve", "--processes", "0"], "--processes: processes is 0; write a whole number of at least 1 or auto"),
        (
            ["serve", "--worker", "ftp://a"],
            "--worker: 'ftp://a' has scheme 'ftp'; write http://HOST:PORT or https://HOST:PORT",
        ),
        (["serve", "--policy", "lpvl"], "--policy: policy 'lpvl': no such policy; write one of"),
        (["serve", "--policy-param", "x"], "--policy-param: 'x' is not KEY=VALUE; write --policy-param x=VALUE"),
        (
            ["serve", "--set", "timeouts.conect_s=1"],
            "unknown setting timeouts.conect_s; did you mean timeouts.connect_s?",
        ),
        (["serve", "--config", "no.yaml"], "--config: cannot read 'no.yaml': No such file or directory"),
        (["check", "--log-level", "loud"], '--log-level: log_level is "loud"; write one of debug'),
        (["config", "--admin-port", "8000"], "--admin-port: port and admin_port are both 8000"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_name_place_and_fix(inside, arguments, said):
    ran = inside(*arguments)
    assert ran.returncode == 2
    assert ran.stderr.startswith("warmroute: ")
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""


def test_mistakes_in_variables_and_files(inside, tmp_path):
    (tmp_path / "w.yaml").write_text("port: 1\nlimits:\n  max_conections: 5\n")
    ran = inside("serve", "--config", "w.yaml", env={"WARMROUTE_HOTS": "x"})
    assert ran.returncode == 2
    assert "warmroute: WARMROUTE_HOTS: unknown variable; did you mean WARMROUTE_HOST?" in ran.stderr
    assert (
        "warmroute: w.yaml:3:3: unknown setting limits.max_conections; did you mean limits.max_connections?"
        in ran.stderr
    )


def test_unknown_options_and_commands(inside):
    assert inside("serve", "--prot", "1").returncode == 2
    assert inside("serve", "--por", "1").returncode == 2, "abbreviations would break when options are added"
    assert inside("sevre").returncode == 2


def run_with(monkeypatch, command):
    monkeypatch.setattr(cli.config, "run", command)
    return cli.main(["config"])


def test_interrupt_is_quiet(monkeypatch, capsys):
    def interrupted(_: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    assert run_with(monkeypatch, interrupted) == 130
    assert capsys.readouterr() == ("", "")


def test_config_errors_of_any_command(monkeypatch, capsys):
    def broken(_: argparse.Namespace) -> int:
        raise ConfigError([Problem("--x", "is wrong", "write y"), Problem("f:3", "too", "write z")])

    assert run_with(monkeypatch, broken) == 2
    assert capsys.readouterr().err == "warmroute: --x: is wrong; write y\nwarmroute: f:3: too; write z\n"


def test_a_closed_pipe_ends_quietly(tmp_path):
    command = f"{sys.executable} -m warmroute config --sample yaml | true"
    ran = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert "Traceback" not in ran.stderr
    assert "BrokenPipe" not in ran.stderr


def test_commands_by_entry_point(monkeypatch, capsys):
    good = EntryPoint("hello", "tests_hello:register", cli.ENTRY_POINTS)
    bad = EntryPoint("broken", "no_such_module:register", cli.ENTRY_POINTS)

    def register(commands):
        commands.add_parser("hello").set_defaults(run=lambda arguments: 7)

    monkeypatch.setattr(
        EntryPoint, "load", lambda self: register if self.name == "hello" else __import__("no_such_module")
    )
    monkeypatch.setattr(cli, "entry_points", lambda group: [good, bad])
    assert cli.main(["hello"]) == 7
    assert "command 'broken' (no_such_module:register) is not available" in capsys.readouterr().err


def test_help_waits_for_nothing_that_serves(tmp_path):
    late = (
        "backends.simulated.server",
        "router.tokenization.prompt_identifier",
        "router.app",
        "rich.table",
        "httpx",
        "uvicorn",
    )
    code = (
        "import sys; import router.cli.main as cli; cli.entry_points = lambda group: [];"
        "cli.build_parser().format_help();"
        f"print([name for name in {late!r} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n", ran.stdout


def test_a_worker_starts_without_the_other_commands(inside, warmroute):
    assert warmroute("worker", "--help").stdout == inside("worker", "--help").stdout
    command = [sys.executable, "-X", "importtime", "-m", "warmroute", "worker", "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "router.cli.worker" in ran.stderr
    assert not re.search(r"router\.(cli\.main|settings|placement|control)\b", ran.stderr)


def test_ctrl_c_while_checking_is_quiet(tmp_path):
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        arguments = ["check", "--worker", f"127.0.0.1:{port}", "--set", "health.probe_timeout_s=50"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WARMROUTE_")}
        process = subprocess.Popen(
            [sys.executable, "-m", "warmroute", *arguments],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        silent.settimeout(30)
        connection, _ = silent.accept()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        connection.close()
    assert (process.returncode, out, err) == (130, "", "")
