"""The sdist and the wheel: they build, and the wheel installs without a network into an empty environment."""

import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
INSTALL_PAGE = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")


def run(*command):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4_000:]
    return done.stdout.strip()


def test_the_page_lists_every_extra_with_its_packages():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", INSTALL_PAGE, re.MULTILINE))
    packages = {name: re.findall(r"`([\w-]+)`", row) for name, row in rows.items()}
    assert packages == {
        name: [re.match(r"[\w-]+", each)[0] for each in wanted]
        for name, wanted in PROJECT["optional-dependencies"].items()
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-P", "-m", "build", "--outdir", folder, ROOT)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestBuilt:
    def test_there_are_one_sdist_and_one_wheel_of_the_projects_version(self, built):
        name = f"warmroute-{PROJECT['version']}"
        assert sorted(path.name for path in built.iterdir()) == [f"{name}-py3-none-any.whl", f"{name}.tar.gz"]

    def test_the_sdist_has_what_deploys_it(self, built):
        (sdist,) = built.glob("*.tar.gz")
        with tarfile.open(sdist) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        assert names >= {"Dockerfile", ".dockerignore", "requirements.lock", "requirements-build.lock"}
        assert names >= {"deploy/systemd/warmroute.service", "Makefile", "tests/deploy/test_wheel.py"}

    def test_the_wheel_has_the_packages_and_nothing_else(self, built):
        (wheel,) = built.glob("*.whl")
        names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
        packages = {"policies", "backends", "router", "loadtest", "warmroute.py"}
        assert names == packages | {f"warmroute-{PROJECT['version']}.dist-info"}

    def test_it_installs_from_a_wheelhouse_alone_and_runs(self, built, tmp_path):
        (wheel,) = built.glob("*.whl")
        lock = ["--require-hashes", "--requirement", ROOT / "requirements.lock"]
        run(sys.executable, "-m", "pip", "download", "--quiet", "--dest", tmp_path / "wheelhouse", *lock)
        venv.create(tmp_path / "empty", with_pip=True)
        offline = ["--isolated", "--no-index", "--find-links", tmp_path / "wheelhouse"]
        run(tmp_path / "empty" / "bin" / "pip", "install", "--quiet", *offline, f"{wheel}[redis]")
        assert run(tmp_path / "empty" / "bin" / "warmroute", "--version").endswith(PROJECT["version"])
