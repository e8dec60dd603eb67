from __future__ import annotations

from backends.worker import parse_endpoint
from router.config.model import Config


class WorkerKeys:
    """Authorization lines by endpoint id.

    `guarded`: clients authenticate to the gateway, so their keys stay here. A worker without a configured key then
    gets no Authorization.
    """

    def __init__(self, config: Config, guarded: bool) -> None:
        self._without = b"" if guarded else None
        self._lines: dict[str, bytes] = {}
        for worker in config.workers:
            self.learn(parse_endpoint(worker.url).authority, worker.api_key)

    def learn(self, endpoint_id: str, key: str | None) -> None:
        if key is not None:
            self._lines[endpoint_id] = b"Authorization: Bearer " + key.encode("ascii")
        else:
            self._lines.pop(endpoint_id, None)

    def line(self, endpoint_id: str) -> bytes | None:
        """Return the line that replaces the client's credentials, or None to forward them."""
        return self._lines.get(endpoint_id, self._without)


def worker_keys(config: Config, guarded: bool) -> WorkerKeys | None:
    """Return the keys by worker, or None if credentials are forwarded unchanged."""
    return WorkerKeys(config, guarded) if guarded or config.auth.inject_worker_key else None
