from __future__ import annotations

from backends.worker import parse_endpoint
from router.config.model import Config


class WorkerKeys:
    """Authorization lines by endpoint id.

    Clients authenticate to the gateway, so their keys stay here. A worker without a configured key gets no
    Authorization.
    """

    def __init__(self, config: Config) -> None:
        self._lines: dict[str, bytes] = {}
        for worker in config.workers:
            self.learn(parse_endpoint(worker.url).authority, worker.api_key)

    def learn(self, endpoint_id: str, key: str | None) -> None:
        if key is not None:
            self._lines[endpoint_id] = b"Authorization: Bearer " + key.encode("ascii")
        else:
            self._lines.pop(endpoint_id, None)

    def line(self, endpoint_id: str) -> bytes:
        """Return the line that replaces the client's credentials; empty: none."""
        return self._lines.get(endpoint_id, b"")


def worker_keys(config: Config, guarded: bool) -> WorkerKeys | None:
    """Return the keys by worker, or None if credentials are forwarded unchanged."""
    return WorkerKeys(config) if guarded else None
