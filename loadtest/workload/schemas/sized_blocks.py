"""Mooncake's rows with blocks of another size, which each row has as ``block_size`` (tokens).

Caches are modelled with blocks of 64 tokens unless a command sets another size. `warmroute plan` makes this of a
decision log.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from loadtest.workload.schemas import mooncake
from loadtest.workload.schemas.schema import MOST_TOKENS, Schema

BLOCK_TOKENS = 64


class Request(mooncake.Request, frozen=True, kw_only=True):
    block_size: Annotated[int, Meta(ge=1, le=2 * MOST_TOKENS)]

    @property
    def block_tokens(self) -> int:
        return self.block_size


SCHEMA = Schema("sized_blocks", mooncake.FIELDS | {"block_size"}, Request, block_tokens=BLOCK_TOKENS)
