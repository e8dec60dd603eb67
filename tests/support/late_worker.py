"""A worker whose `/health`, `/metrics` and answers take as long as a test says."""

import asyncio
from collections.abc import Awaitable, Callable

from tests.support.answers import answer_json
from tests.support.scripted_worker import Script, ScriptedWorker

MODELS = b'{"data":[{"id":"m"}]}'


class LateWorker(ScriptedWorker):
    """Answers `/health` after `health_s` and `/metrics` after `metrics_s`; never if that is None.

    Its token counter moves with each read of `/metrics` while `works`. With `resets`, a question for `/health` breaks
    its connection. `asked` counts these questions, and `chats` the chat requests, which `script` answers.
    """

    def __init__(self, script: Callable[[Script], Awaitable[None]] = answer_json) -> None:
        super().__init__(self._answer)
        self.chat = script
        self.health_s: float | None = 0.0
        self.metrics_s: float | None = 0.0
        self.works = self.resets = False
        self.tokens = self.asked = self.chats = 0
        self._questions: set[asyncio.StreamWriter] = set()

    async def _answer(self, script: Script) -> None:
        if script.seen.method == b"GET":
            await self._question(script, script.seen.path)
        elif script.seen.path == b"/v1/chat/completions":
            self.chats += 1
            await self.chat(script)
        else:
            await answer_json(script, b"404 Not Found", b"{}")

    async def _question(self, script: Script, path: bytes) -> None:
        self.asked += path == b"/health"
        self._questions.add(script.writer)
        if path == b"/health" and self.resets:
            await script.die()
            return
        delay_s = {b"/health": self.health_s, b"/metrics": self.metrics_s}.get(path, 0.0)
        if delay_s is None:
            await script.gone()
            return
        await asyncio.sleep(delay_s)
        pages = {b"/v1/models": MODELS, b"/metrics": self._page(), b"/version": b'{"version":"0.33.0"}'}
        await answer_json(script, body=pages.get(path, b"{}"))

    def close_idle(self) -> None:
        """Close the connections of probes, as a server that shuts down does with those that are idle."""
        for writer in self._questions:
            writer.close()

    def _page(self) -> bytes:
        self.tokens += self.works
        return b"vllm:num_requests_running 1\nvllm:generation_tokens_total %d\n" % self.tokens
