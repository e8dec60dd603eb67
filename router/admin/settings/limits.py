"""What is left of the limits of tenants and keys."""

from __future__ import annotations

from typing import Any

import msgspec

from router.admin.documents import Shape
from router.admin.operations import Answer, Call, read


class BucketDocument(Shape):
    """A token bucket. It gains `per_minute` up to `burst`, holds `remaining`, and is full after `full_s`.

    `remaining` is below 0 after a request that used more than its estimate.
    """

    per_minute: int
    burst: int
    remaining: float
    full_s: float


class AccountLimits(Shape):
    """A tenant or key with limits. `account` is tenant:NAME, key:NAME or anybody. null: no such limit.

    `running_requests` are its requests in progress in all processes, and of all gateways that share Redis. So is what
    is left.
    """

    account: str
    running_requests: int
    max_concurrent_requests: int | None = None
    requests: BucketDocument | None = None
    tokens: BucketDocument | None = None


class LimitsDocument(Shape):
    """All accounts with limits, by name."""

    accounts: list[AccountLimits]


@read("limits", LimitsDocument, processes="first")
async def get_limits(call: Call) -> Answer:
    """What each tenant and key has left of its limits now."""
    return Answer(LimitsDocument(accounts=[_document(account) for account in call.process.gateway.limits()]))


def _document(account: dict[str, Any]) -> AccountLimits:
    return AccountLimits(
        account=account["account"],
        running_requests=account["running"],
        max_concurrent_requests=account["max_concurrent_requests"] or None,
        requests=_bucket(account["requests"]),
        tokens=_bucket(account["tokens"]),
    )


def _bucket(bucket: dict[str, float] | None) -> BucketDocument | None:
    return None if bucket is None else msgspec.convert(bucket, BucketDocument)
