import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import msgspec
import pytest
from starlette.responses import JSONResponse

from backends.simulated import serving as embedded_serving
from backends.simulated.settings import WorkerSettings
from router.app import GatewayProcess
from router.cli.main import main
from router.config.model import Config


@pytest.fixture
def warmroute(tmp_path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command in an empty folder, without our variables in its environment."""

    def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("WARMROUTE_")}
        return subprocess.run(
            [sys.executable, "-m", "warmroute", *arguments],
            cwd=tmp_path,
            env={**inherited, "COLUMNS": "120", **(env or {})},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def inside(tmp_path, monkeypatch, capsys) -> Callable[..., SimpleNamespace]:
    """The same within this process, which takes milliseconds instead of half a second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    for name in [name for name in os.environ if name.startswith("WARMROUTE_")]:
        monkeypatch.delenv(name)

    def run(*arguments: str, env: dict[str, str] | None = None) -> SimpleNamespace:
        with monkeypatch.context() as context:
            for name, value in (env or {}).items():
                context.setenv(name, value)
            try:
                returncode = main(arguments)
            except SystemExit as exit_:
                returncode = exit_.code
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=returncode, stdout=out, stderr=err)

    return run


@pytest.fixture
def guarded(monkeypatch):
    """Serve an embedded worker that wants a key where vLLM's --api-key does."""
    real = embedded_serving.build_app

    def serving(key: str, **settings):
        def build(worker):
            app = real(worker)

            async def guard(scope, receive, send):
                shown = dict(scope.get("headers", [])).get(b"authorization")
                if scope["type"] == "http" and scope["path"].startswith("/v1") and shown != f"Bearer {key}".encode():
                    app_or_refusal = JSONResponse({"error": "Unauthorized"}, 401)
                else:
                    app_or_refusal = app
                await app_or_refusal(scope, receive, send)

            return guard

        monkeypatch.setattr(embedded_serving, "build_app", build)
        return embedded_serving.serving(WorkerSettings(time_scale=0, **settings))

    return serving


@pytest.fixture
def dead_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture
def settings() -> dict[str, object]:
    return {}


@pytest.fixture
async def system(settings):
    system = GatewayProcess(msgspec.convert({"host": "127.0.0.1", "port": 0, "admin_port": 0, **settings}, Config))
    await system.start()
    yield system
    await system.aclose(0.0)


@pytest.fixture
def run(system, monkeypatch, capsys):
    """Run a command in a thread of its own, because the gateway runs in this one."""
    monkeypatch.delenv("WARMROUTE_ADMIN_TOKEN", raising=False)

    async def command(*words: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, [*words, "--url", f"http://{system.ports.admin.address}"])
        out, err = capsys.readouterr()
        return code, out, err

    return command
