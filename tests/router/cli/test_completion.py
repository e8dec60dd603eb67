import argparse
import shutil
import subprocess

import pytest

from router.cli.completion import SCRIPTS, bash_script, fish_script, words_of
from router.cli.main import build_parser

COMMANDS = tuple(words_of(build_parser()))
ASK = 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _warmroute; printf "%s\\n" "${COMPREPLY[@]}"'


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "warmroute.bash"
    path.write_text(bash_script(COMMANDS))
    return path


@pytest.fixture
def completed(script):
    """What bash offers for a command line; the last word is the one under the cursor."""

    def completed(*words):
        command = ["bash", "--norc", "-c", f"source {script}; {ASK}", "bash", *words]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        assert ran.stderr == ""
        return ran.stdout.split()

    return completed


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("warmroute", "ser"), ["serve"]),
        (("warmroute", "completion", ""), ["bash", "zsh", "fish", "-h", "--help"]),
        (("warmroute", "completion", "z"), ["zsh"]),
        (("warmroute", "serve", "--admin-p"), ["--admin-port"]),
        (("warmroute", "serve", "--port", "80", "--log-l"), ["--log-level"]),
        (("warmroute", "serve", "--log-format", ""), ["auto", "json", "text"]),
        (("warmroute", "serve", "--log-format", "=", "js"), ["json"]),
        (("warmroute", "serve", "--log-format", "="), ["auto", "json", "text"]),
        (("warmroute", "serve", "--policy", "lp"), ["lpwl"]),
        (("warmroute", "check", "--policy", "lp"), ["lpwl"]),
        (("warmroute", "serve", "--config", "w"), []),
        (("warmroute", "keys", "ne"), ["new"]),
        (("warmroute", "fleet", "--profile", "qwen3-32b-2xh"), ["qwen3-32b-2xh100"]),
    ],
)
def test_bash_completes(completed, words, offered):
    assert sorted(completed(*words)) == sorted(offered)


def test_bash_offers_every_command_and_option_of_the_parser(completed):
    for command in COMMANDS:
        wanted = {*command.commands, *(name for option in command.options for name in option.names)}
        assert wanted <= set(completed("warmroute", *command.path, ""))


def test_every_command_and_option_has_a_line_for_fish():
    text = fish_script(COMMANDS)
    for command in COMMANDS:
        for name in command.commands:
            assert f" -a {name} -d " in text
        for option in command.options:
            long = [name for name in option.names if name.startswith("--")]
            assert all(f" -l {name[2:]}" in text for name in long)
    assert "-l log-format -x -a 'auto json text' -d '" in text


def test_a_quote_in_a_help_text_stays_text_in_fish():
    parser = argparse.ArgumentParser(prog="warmroute")
    parser.add_argument("--odd", help="it's a \\ and 100%%")
    (command,) = words_of(parser)
    assert r"-l odd -r -F -d 'it\'s a \\ and 100%'" in fish_script((command,))


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_command_prints_a_script_that_the_shell_can_read(inside, tmp_path, shell):
    ran = inside("completion", shell)
    assert ran.returncode == 0 and "warmroute" in ran.stdout
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(ran.stdout)
    assert subprocess.run([shell, "-n", str(script)], capture_output=True, timeout=30, check=False).stderr == b""
