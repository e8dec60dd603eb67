"""Mooncake's rows with blocks of another size, which each row has as ``block_size`` (tokens).

Caches are modelled with blocks of 64 tokens unless a command sets another size. `warmroute plan` makes this of a
decision log. A row may have a ``type``, the kind of the call.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from msgspec import Meta

from loadtest.workload.draw import Draws
from loadtest.workload.plan import Call
from loadtest.workload.schemas import mooncake
from loadtest.workload.schemas.schema import MOST_TOKENS, Schema

BLOCK_TOKENS = 64


class Request(mooncake.Request, frozen=True, kw_only=True):
    block_size: Annotated[int, Meta(ge=1, le=2 * MOST_TOKENS)]
    type: str = "request"

    @property
    def block_tokens(self) -> int:
        return self.block_size

    def call(self, draws: Draws) -> Call:
        return replace(super().call(draws), kind=self.type)


SCHEMA = Schema("sized_blocks", mooncake.FIELDS | {"block_size"}, Request, block_tokens=BLOCK_TOKENS)
