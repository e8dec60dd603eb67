"""Alibaba Bailian's traces of Qwen (A, B): as Mooncake's, with blocks of 16 tokens, times in seconds, and chats.

A row has ``chat_id``, ``parent_chat_id`` (-1 for the first turn), ``timestamp``, ``input_length``, ``output_length``,
``type``, ``turn`` and ``hash_ids``. Its time is the recorded one, so it is replayed as an open loop. `TIMED` is the
same without chats: vLLM's ``timed_trace`` with its default labels, which no field tells from Mooncake's.

Source: alibaba-edu/qwen-bailian-usagetraces-anon, Apache-2.0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from loadtest.workload.draw import Draws
from loadtest.workload.plan import Call
from loadtest.workload.schemas import mooncake
from loadtest.workload.schemas.schema import Schema

BLOCK_TOKENS = 16


class TimedRequest(mooncake.Request, frozen=True):
    id_tokens: ClassVar[int] = BLOCK_TOKENS
    tick_s: ClassVar[float] = 1.0


class Turn(TimedRequest, frozen=True, kw_only=True):
    chat_id: int | str
    type: str

    def call(self, draws: Draws) -> Call:
        return replace(super().call(draws), kind=self.type or "request")


TIMED = Schema("timed_trace", mooncake.FIELDS, TimedRequest, block_tokens=BLOCK_TOKENS)
SCHEMA = Schema("bailian", mooncake.FIELDS | {"chat_id", "type"}, Turn, block_tokens=BLOCK_TOKENS)
