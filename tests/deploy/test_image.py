"""The image builds from the Dockerfile, and runs as its user on a root file system that it cannot write to.

Buildah builds it without a daemon. A minimal Debian stands in for python:3.12-slim, so no image registry is needed.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from loadtest.fleet.ports import free_ports
from loadtest.fleet.process import Process
from tests.support.waiting import block_until

ROOT = Path(__file__).parents[2]
HADOLINT = ROOT / ".venv-deploy" / "bin" / "hadolint"
STAND_IN = "python3-dev,python3-venv,ca-certificates"
"""Of Debian, what python:3.12-slim has: an interpreter with its headers, and certificates."""
FROM_THE_HOST = [f"--volume={path}:{path}:ro" for path in ("/etc/ssl/certs", "/etc/resolv.conf")]
READ_ONLY = """
mount --bind "$0" "$0" && mount --options remount,bind,ro "$0"
mount --types proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount --types tmpfs tmpfs "$0/tmp"
exec chroot --userspec=10001:10001 "$0" env --chdir=/var/lib/warmroute "$@"
"""


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint is not installed: run `make deploy-env`")
def test_hadolint_finds_nothing_in_the_dockerfile():
    linted = subprocess.run([HADOLINT, ROOT / "Dockerfile"], capture_output=True, text=True, timeout=60)
    assert (linted.returncode, linted.stdout) == (0, "")


class Buildah:
    def __init__(self, folder):
        self._options = [f"--root={folder / 'root'}", f"--runroot={folder / 'run'}"]
        self._environment = {**os.environ, "STORAGE_DRIVER": "overlay", "BUILDAH_ISOLATION": "chroot"}

    def __call__(self, *arguments):
        command = ["buildah", *self._options, *map(str, arguments)]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4_000:]
        return done.stdout.strip()


@pytest.fixture(scope="module")
def buildah(tmp_path_factory):
    missing = [name for name in ("buildah", "mmdebstrap") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("buildah with chroot isolation needs root")
    buildah = Buildah(tmp_path_factory.mktemp("buildah"))
    yield buildah
    buildah("rm", "--all")
    buildah("rmi", "--all", "--force")


@pytest.fixture(scope="module")
def image(buildah, tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    packages = ["--variant=minbase", f"--include={STAND_IN}", "bookworm", str(folder / "base.tar")]
    subprocess.run(["mmdebstrap", "--quiet", *packages], check=True, timeout=600)
    (folder / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
    buildah("bud", "--quiet", "--tag=localhost/python:base", folder)
    base = "--build-arg=BASE=localhost/python:base"
    buildah("bud", "--quiet", base, "--format=docker", *FROM_THE_HOST, "--tag=warmroute:test", ROOT)
    return "warmroute:test"


@pytest.fixture(scope="module")
def settings(buildah, image):
    return json.loads(buildah("inspect", "--type=image", image))["Docker"]["config"]


@pytest.fixture(scope="module")
def run(buildah, image, settings):
    """Return the command that runs its arguments in the image: as its user, and with a root file system to read."""
    folder = buildah("mount", buildah("from", image))
    environment = ["env", "--ignore-environment", *settings["Env"]]
    return lambda *arguments: [*environment, "unshare", "--mount", "sh", "-ec", READ_ONLY, folder, *arguments]


def output(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.nightly
@pytest.mark.timeout(3600)
class TestImage:
    def test_its_entry_point_is_warmroute_and_its_user_is_not_root(self, settings):
        assert (settings["Entrypoint"], settings["Cmd"], settings["User"]) == (["warmroute"], ["serve"], "10001:10001")

    def test_the_version_is_that_of_the_project(self, run):
        here = output([sys.executable, "-m", "warmroute", "--version"])
        assert output(run("warmroute", "--version")) == here

    def test_it_runs_as_its_user_and_can_write_to_tmp_alone(self, run):
        assert output(run("id", "-u")) == "10001"
        assert output(run("sh", "-c", "touch /tmp/x && ! touch ~/x 2>/dev/null && echo read-only")) == "read-only"

    def test_a_volume_for_tokenizers_belongs_to_its_user(self, run):
        folder = output(run("sh", "-c", "echo $HF_HOME"))
        assert output(run("stat", "--format=%u:%g", folder)) == "10001:10001"

    def test_the_hot_path_is_compiled(self, run):
        module = "import router.gateway.flow.answer.relay as m; print(m.__file__)"
        assert output(run("python3", "-c", module)).endswith(".so")

    def test_it_has_neither_a_compiler_nor_pip(self, run):
        found = "command -v gcc || command -v pip || python3 -c 'import pip' 2>/dev/null || echo none"
        assert output(run("sh", "-c", found)) == "none"

    def test_a_gateway_and_a_worker_serve_and_the_health_check_sees_the_gateway_alone(self, run, settings):
        port = free_ports(3)
        check = [part.replace(":8001/", f":{port + 2}/") for part in settings["Healthcheck"]["Test"][1:]]
        assert subprocess.run(run(*check), capture_output=True).returncode != 0
        worker = Process(run("warmroute", "worker", f"--port={port}"), "worker")
        ports = [f"--port={port + 1}", f"--admin-port={port + 2}"]
        gateway = Process(run("warmroute", "serve", f"--worker=http://127.0.0.1:{port}", *ports), "gateway")
        try:
            block_until(lambda: subprocess.run(run(*check), capture_output=True).returncode == 0, 60)
            public = f"http://127.0.0.1:{port + 1}"
            block_until(lambda: httpx.get(f"{public}/readyz").status_code == 200, 60)
            model = httpx.get(f"{public}/v1/models").json()["data"][0]["id"]
            body = {"model": model, "prompt": "Hello", "max_tokens": 4}
            assert httpx.post(f"{public}/v1/completions", json=body).json()["usage"]["completion_tokens"] == 4
        finally:
            gateway.stop()
            worker.stop()

    def test_the_demo_runs_in_it(self, run):
        assert "round_robin" in output(run("warmroute", "demo", "--conversations", "4", "--workers", "2"))
