"""The settings of a gateway with everything on.

API keys of a hundred callers, cache isolation, limits too high to refuse anything, an alias of the model, four routes
of which the last one matches, and a decision log of every request.
"""

from __future__ import annotations

import json
from typing import Any

from loadtest.bench.frames import MODEL
from loadtest.bench.proxies.entrant import Place
from router.security.keys import KeyEntry, digest_of

KEYS = 100
_KEY = "wr-bench-bench-bench-bench-bench-bench"
KEY_LINE = f"authorization: Bearer {_KEY}\r\n"
"""The header line of the bench's caller."""
_ENOUGH = 1_000_000_000_000


def flags(place: Place) -> list[str]:
    """Return the flags that turn everything on. The settings are in a file, which names the workers, too."""
    file = place.folder / "features.yaml"
    file.write_text(json.dumps({"workers": [{"url": url} for url in place.worker_urls], **_sections(place)}))
    return ["--config", str(file)]


def _sections(place: Place) -> dict[str, Any]:
    others = [KeyEntry(f"key{number}", digest_of(b"%d" % number)).line for number in range(KEYS - 1)]
    limits = {
        "max_concurrent_requests": _ENOUGH,
        "requests_per_minute": _ENOUGH,
        "tokens_per_minute": _ENOUGH,
        "burst_tokens": _ENOUGH,
    }
    return {
        "auth": {"api_keys": [*others, KeyEntry("bench", digest_of(_KEY.encode())).line]},
        "tenants": {"bench": {"keys": ["bench"], "max_queued_requests": 1_000}},
        "limits": {"tenants": {"default": limits}},
        "models": {MODEL: {"aliases": ["chat"]}},
        "routes": [
            {"name": "eval", "match": {"header": {"x-team": "eval"}}, "limits": {"max_requests": 32}},
            {"name": "long", "match": {"prompt_tokens": ">32000"}},
            {"name": "other", "match": {"model": "another-model"}},
            {"name": "all"},
        ],
        "decision_log": {"path": str(place.folder / "decisions.jsonl")},
    }
