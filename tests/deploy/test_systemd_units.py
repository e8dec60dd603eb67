import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from router.cli import serve
from router.cli.main import build_parser
from router.config.model import TimeoutsConfig

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
SERVICE = (UNITS / "warmroute.service").read_text()


def setting(name):
    return re.search(rf"^{name}=(.*)$", SERVICE, re.MULTILINE)[1]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(tmp_path):
    (tmp_path / "warmroute.socket").write_text((UNITS / "warmroute.socket").read_text())
    service = tmp_path / "warmroute.service"
    service.write_text(SERVICE.replace("/opt/warmroute/bin/warmroute", sys.executable))  # which must exist
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(service), str(tmp_path / "warmroute.socket")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    ours = [line for line in verified.stderr.splitlines() if "warmroute" in line]
    assert (verified.returncode, ours) == (0, [])


def test_the_folder_of_fetched_tokenizers_can_be_written_to():
    assert setting("Environment") == f"HF_HOME=/var/cache/{setting('CacheDirectory')}/huggingface"


def test_the_units_command_is_serve():
    command = shlex.split(setting("ExecStart"))
    arguments = build_parser().parse_args(command[1:])
    assert arguments.run is serve.run


def test_the_time_limits_exceed_drain_and_takeover():
    timeouts = TimeoutsConfig()
    assert int(setting("TimeoutStopSec")) > timeouts.drain_delay_s + timeouts.drain_s + 5
    assert int(setting("TimeoutStartSec")) > timeouts.takeover_ready_s + 10
