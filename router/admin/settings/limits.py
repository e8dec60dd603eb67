"""The limits of tenants and keys, and what is left of them."""

from __future__ import annotations

from typing import Any

import msgspec

from router.admin.documents import AccountLimits, BucketDocument, LimitsDocument
from router.admin.operations import Answer, Call


async def show(call: Call) -> Answer:
    """Answer with the fill of each account. Processes share it, so that one of them can answer for all."""
    return Answer(LimitsDocument(accounts=[_document(account) for account in call.system.limits()]))


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
