"""A store that embedded workers share, without moving bytes: a folder with an empty file for each prompt stored.

As in vLLM, requests carry no parameters for it. A worker stores each prompt that it has computed, and takes from the
store what it lacks. Only whole prompts are found, not what two prompts have in common.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from pathlib import Path

import xxhash

from backends.simulated.settings import WorkerSettings


class KvStore:
    def __init__(self, settings: WorkerSettings, block_tokens: int) -> None:
        self._folder = settings.kv_store_dir
        self._block_tokens = block_tokens
        self._tokens_per_s = settings.kv_transfer_tokens_per_s
        self._time_scale = settings.time_scale
        self.stored = self.found = 0
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)

    @property
    def enabled(self) -> bool:
        return self._folder is not None

    async def load(self, prompt: Sequence[int], salt: str | None, adapter: str | None) -> int | None:
        """Load the prompt if the store has it. Return the tokens found; None if there are none."""
        file, tokens = self._file(prompt, salt, adapter), self._stored_tokens(prompt)
        if file is None or not tokens or not file.exists():
            return None
        self.found += 1
        await asyncio.sleep(tokens / self._tokens_per_s * self._time_scale)
        return tokens

    def store(self, prompt: Sequence[int], salt: str | None, adapter: str | None) -> None:
        file = self._file(prompt, salt, adapter)
        if file is not None and self._stored_tokens(prompt):
            self.stored += 1
            file.touch()

    def _stored_tokens(self, prompt: Sequence[int]) -> int:
        return max(0, len(prompt) - 1) // self._block_tokens * self._block_tokens

    def _file(self, prompt: Sequence[int], salt: str | None, adapter: str | None) -> Path | None:
        if self._folder is None:
            return None
        ids = array("q", prompt[: self._stored_tokens(prompt)]).tobytes()
        return self._folder / xxhash.xxh3_128_hexdigest(f"{adapter}\0{salt}\0".encode() + ids)
