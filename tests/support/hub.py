"""A Hugging Face hub on loopback: the part of its API that resolves files."""

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "c0ffee" + "0" * 34


@dataclass
class Hub:
    """Files by ``ORG/MODEL`` and name. `asked` are the requests, with their Authorization headers.

    `token`: needed for every file. `status`: the answer to everything. `trickle_s`: pause after each kilobyte.
    `claims`: sizes that HEAD names instead of the true ones. `endless`: bodies without length or end.
    """

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    token: str | None = None
    status: int | None = None
    trickle_s: float = 0.0
    claims: dict[str, int] = field(default_factory=dict)
    endless: bool = False
    url: str = ""

    @property
    def names(self) -> set[str]:
        return {path.rpartition("/")[2] for method, path, _ in self.asked if method == "GET"}


@contextmanager
def hub(**models: Path) -> Iterator[Hub]:
    """Run a hub with the files of folders, as ``org/NAME``."""
    state = Hub({f"org/{name}": _files(folder) for name, folder in models.items()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(state))
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _handler(state: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            given = self.headers.get("authorization")
            state.asked.append((self.command, self.path, given))
            model, _, name = self.path.strip("/").partition("/resolve/main/")
            if not name:
                model, _, name = self.path.strip("/").partition(f"/resolve/{COMMIT}/")
            if state.status is not None:
                self._refuse(state.status)
            elif state.token is not None and given != f"Bearer {state.token}":
                self._refuse(401, "RepoNotFound")
            elif model not in state.files:
                self._refuse(404, "RepoNotFound")
            elif name not in state.files[model]:
                self._refuse(404, "EntryNotFound")
            else:
                self._send(state.files[model][name], name, body)

        def _refuse(self, status: int, code: str = "") -> None:
            self.send_response(status)
            if code:
                self.send_header("x-error-code", code)
            self.send_header("content-length", "0")
            self.end_headers()

        def _send(self, content: bytes, name: str, body: bool) -> None:
            self.send_response(200)
            self.send_header("x-repo-commit", COMMIT)
            self.send_header("etag", f'"{hashlib.sha1(content).hexdigest()}"')
            if not (state.endless and name == "tokenizer.json"):
                size = len(content) if body else state.claims.get(name, len(content))
                self.send_header("content-length", str(size))
            self.end_headers()
            if body:
                self._write(content, name)

        def _write(self, content: bytes, name: str) -> None:
            try:
                for at in range(0, len(content), 1_024):
                    self.wfile.write(content[at : at + 1_024])
                    if state.trickle_s:
                        time.sleep(state.trickle_s)
                while state.endless and name == "tokenizer.json":
                    self.wfile.write(b" " * 1_000_000)
            except OSError:  # the client has left
                pass

    return Handler
