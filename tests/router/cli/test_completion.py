import shutil
import subprocess

import pytest

from router.cli.completion import script
from router.cli.main import build_parser

ASK = 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_warmroute; printf "%s\\n" "${COMPREPLY[@]}"'


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "warmroute.bash"
    path.write_text(script(build_parser(), "bash"))
    return path


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("ser", ["serve"]),
        ("completion z", ["zsh"]),
        ("serve --admin-p", ["--admin-port"]),
        ("serve --port 80 --log-l", ["--log-level"]),
        ("serve --log-format ", ["auto", "json", "text"]),
        ("serve --policy lp", ["lpwl"]),
        ("check --policy lp", ["lpwl"]),
        ("keys ne", ["new"]),
        ("fleet --profile qwen3-32b-2xh", ["qwen3-32b-2xh100"]),
    ],
)
def test_bash_completes(path, words, offered):
    command = ["bash", "--norc", "-c", f"source {path}; {ASK}", "bash", "warmroute", *words.split(" ")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert ran.stderr == ""
    assert sorted(ran.stdout.split()) == sorted(offered)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_command_prints_a_script_that_the_shell_can_read(inside, tmp_path, shell):
    ran = inside("completion", shell)
    assert ran.returncode == 0 and "warmroute" in ran.stdout
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    file = tmp_path / "script"
    file.write_text(ran.stdout)
    assert subprocess.run([shell, "-n", str(file)], capture_output=True, timeout=30, check=False).stderr == b""
