"""Which Authorization goes to which worker."""

from __future__ import annotations

from backends.worker import parse_endpoint
from router.config.model import Config


class WorkerKeys:
    """Header lines by endpoint id, for requests that do not carry their client's own.

    `guarded`: the public port has keys, so that the client's is ours: a worker without a key of its own gets none.
    """

    def __init__(self, config: Config, guarded: bool) -> None:
        self._without = b"" if guarded else None
        self._lines: dict[str, bytes] = {}
        for worker in config.workers:
            self.learn(parse_endpoint(worker.url).authority, worker.api_key)

    def learn(self, endpoint_id: str, key: str | None) -> None:
        """The key that the endpoint wants, if it wants one."""
        if key is not None:
            self._lines[endpoint_id] = b"Authorization: Bearer " + key.encode("ascii")
        else:
            self._lines.pop(endpoint_id, None)

    def line(self, endpoint_id: str) -> bytes | None:
        """What takes the place of a client's credentials; None where they go on as they are."""
        return self._lines.get(endpoint_id, self._without)


def worker_keys(config: Config, guarded: bool) -> WorkerKeys | None:
    """None where every request carries what its client sent."""
    return WorkerKeys(config, guarded) if guarded or config.auth.inject_worker_key else None
