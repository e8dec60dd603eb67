"""The services of docker-compose.yml as plain processes on loopback, with the commands that the file gives them.

Each service gets a loopback address of its own (127.A.B.N), so that ports stay as they are in the file. In commands,
environment, health checks and mounted files its name becomes this address, and so do `0.0.0.0` and `127.0.0.1`.
"""

import atexit
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from loadtest.fleet.process import Process
from tests.support.waiting import block_until

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / ".venv-deploy" / "bin" / "docker-compose"
MAKE_SECRETS = ROOT / "deploy" / "compose" / "make-secrets.sh"
OWN_IMAGE = "warmroute"
OWN_PROGRAM = (sys.executable, "-P", "-m", "warmroute")


@cache
def secrets_folder() -> Path:
    """Return a folder of passwords and tokens, made as the page says. It lasts as long as the tests."""
    folder = Path(tempfile.mkdtemp(prefix="warmroute-secrets-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    subprocess.run(["sh", MAKE_SECRETS, folder], check=True, timeout=10)
    return folder


def secret(name: str) -> str:
    return (secrets_folder() / name).read_text().strip()


def redis_password() -> str:
    return dict(line.split("=", 1) for line in secret("gateway.env").splitlines())["WARMROUTE_REDIS__PASSWORD"]


def compose_config(*options: str) -> dict[str, Any]:
    command = [str(COMPOSE), *options, "config", "--format", "json"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COMPOSE_")}
    environment["SECRETS"] = str(secrets_folder())
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    config: dict[str, Any] = json.loads(done.stdout)
    return config


def image_health_check() -> list[str]:
    match = re.search(r"^HEALTHCHECK .*\n?.*CMD (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert match is not None
    command: list[str] = json.loads(match[1])
    return command


class ComposeProcesses:
    """The services `names` of `config`, with their files and logs in `folder`."""

    def __init__(self, config: Mapping[str, Any], names: Sequence[str], folder: Path) -> None:
        self._services: Mapping[str, Any] = config["services"]
        self._folder = folder
        network = f"127.{random.randrange(10, 250)}.{random.randrange(250)}"
        self.addresses = {name: f"{network}.{number}" for number, name in enumerate(self._services, start=1)}
        self.names = tuple(names)
        self.processes: dict[str, Process] = {}

    def start(self, *names: str) -> None:
        """Start these services, or all, and wait until their health checks succeed."""
        for name in names or self.names:
            command, environment = self._command(name), self._environment(name)
            self.processes[name] = Process(command, name, environment, self._log(name))
        for name in names or self.names:
            block_until(lambda name=name: self.healthy(name), 60)  # type: ignore[misc]

    def healthy(self, name: str) -> bool:
        process = self.processes[name]
        assert process.alive, f"{name} ended:\n{process.tail()}"
        test = self._health_check(name)
        return not test or subprocess.run(test, capture_output=True, check=False, timeout=10).returncode == 0

    def files(self, name: str) -> list[Path]:
        return sorted((self._folder / name).iterdir())

    def log(self, name: str) -> str:
        return self._log(name).read_text()

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def stop(self) -> None:
        for process in self.processes.values():
            process.stop()

    def _command(self, name: str) -> list[str]:
        service = self._services[name]
        words = [self._local(word, name) for word in service["command"]]
        if service["image"] == OWN_IMAGE:
            child = words.index("--") + 1 if "--" in words else len(words)
            return [*OWN_PROGRAM, *words[:child], *(each for word in words[child:] for each in _program(word))]
        program = service["image"].split(":")[0].rpartition("/")[2]
        return words if shutil.which(words[0]) else [program, *words]

    def _environment(self, name: str) -> dict[str, str]:
        given: Mapping[str, str] = self._services[name].get("environment", {})
        # All have one loopback interface here: the drain ports differ, and no source address says who calls.
        apart = {
            "WARMROUTE_SIDECAR__DRAIN_PORT": "0",
            "WARMROUTE_SIDECAR__ADVERTISE_URL": f"http://{self.addresses[name]}:8080",
        }
        return apart | {key: self._local(value, name) for key, value in given.items()}

    def _health_check(self, name: str) -> list[str]:
        service = self._services[name]
        if "healthcheck" in service:
            test = service["healthcheck"]["test"][1:]
        elif service["image"] == OWN_IMAGE:
            test = image_health_check()
        else:
            return []
        here = [self._local(word, name) for word in test]
        return [sys.executable if word == "python3" else word for word in here]

    def _local(self, text: str, name: str) -> str:
        """Return `text` of the service `name` with its addresses and files here."""
        mounted = {volume["target"]: volume for volume in self._services[name].get("volumes", ())}
        targets = "|".join(sorted(map(re.escape, mounted), key=len, reverse=True))
        if mounted:
            text = re.sub(targets, lambda match: str(self._file(mounted[match[0]], name)), text)
        return self._addressed(text, name)

    def _file(self, volume: Mapping[str, Any], name: str) -> Path:
        here: Path = self._folder / name / volume["target"].strip("/").replace("/", "-")
        if volume["type"] == "volume":
            here.mkdir(parents=True, exist_ok=True)
        elif not here.exists():
            here.parent.mkdir(parents=True, exist_ok=True)
            here.touch()  # a file may name itself
            here.write_text(self._local(Path(volume["source"]).read_text(), name))
        return here

    def _addressed(self, text: str, name: str) -> str:
        known = "|".join(sorted(map(re.escape, self.addresses), key=len, reverse=True))
        named = re.sub(rf"(?<![\w.-])({known})(?=:\d)", lambda match: self.addresses[match[1]], text)
        return re.sub(r"(?<![\d.])(0\.0\.0\.0|127\.0\.0\.1)(?![\d.])", self.addresses[name], named)


def _program(word: str) -> Sequence[str]:
    return OWN_PROGRAM if word == OWN_IMAGE else (word,)
