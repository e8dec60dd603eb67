"""The gateway's features, all or some of them, to compare their cost with that of its defaults.

`keys`: API keys of a hundred callers, with a tenant, and with cache isolation, which they turn on. `limits`: limits of
every caller, too high to refuse anything. `aliases`: an alias of the model. `routes`: four routes, of which the last
one matches. `log`: a decision log of every request.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from loadtest.bench.frames import MODEL
from loadtest.bench.proxies.entrant import Place
from router.security.keys import KeyEntry, digest_of

NAMES = ("keys", "limits", "aliases", "routes", "log")
KEYS = 100
_KEY = "wr-bench-bench-bench-bench-bench-bench"
KEY_LINE = f"authorization: Bearer {_KEY}\r\n"
"""The header line of the bench's caller."""
_ENOUGH = 1_000_000_000_000


@dataclass(frozen=True, slots=True)
class Features:
    """Some of the features of `NAMES`: all by default."""

    names: Collection[str] = NAMES

    @property
    def lines(self) -> str:
        """The header lines that a request needs, each with its end."""
        return KEY_LINE if "keys" in self.names else ""

    def flags(self, place: Place) -> list[str]:
        """Return the flags that turn the features on. The settings are in a file, which names the worker, too."""
        file = place.folder / "features.yaml"
        settings: dict[str, Any] = {"workers": [{"url": url} for url in place.worker_urls]}
        for name, sections in _sections(place).items():
            if name in self.names:
                settings |= sections
        file.write_text(json.dumps(settings))  # JSON is YAML
        return ["--config", str(file)]


def _sections(place: Place) -> dict[str, dict[str, Any]]:
    others = [KeyEntry(f"key{number}", digest_of(b"%d" % number)).line for number in range(KEYS - 1)]
    limits = {
        "max_concurrent_requests": _ENOUGH,
        "requests_per_minute": _ENOUGH,
        "tokens_per_minute": _ENOUGH,
        "burst_tokens": _ENOUGH,
    }
    return {
        "keys": {
            "auth": {"api_keys": [*others, KeyEntry("bench", digest_of(_KEY.encode())).line]},
            "tenants": {"bench": {"keys": ["bench"], "max_queued_requests": 1_000}},
        },
        "limits": {"limits": {"tenants": {"default": limits}}},
        "aliases": {"models": {MODEL: {"aliases": ["chat"]}}},
        "routes": {
            "routes": [
                {"name": "eval", "match": {"header": {"x-team": "eval"}}, "limits": {"max_requests": 32}},
                {"name": "long", "match": {"prompt_tokens": ">32000"}},
                {"name": "other", "match": {"model": "another-model"}},
                {"name": "all"},
            ]
        },
        "log": {"decision_log": {"path": str(place.folder / "decisions.jsonl")}},
    }
