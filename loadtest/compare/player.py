"""Play a plan over HTTP. Sessions start at their times, and each call follows the end of the one before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from loadtest.compare.wording import Wording
from loadtest.drive.chat import Timing, complete
from loadtest.drive.http import Client
from loadtest.sim.outcome import Ending, Outcome
from loadtest.workload.plan import Call, Plan, Session

LEAD_S = 0.3
"""Time between the begin of a run and second 0 of its plan, so that every session's task is waiting by then."""
SESSION_HEADER = "x-session-id"


@dataclass(frozen=True, slots=True)
class Answered:
    """One call as the simulator would report it, and its error, if any."""

    outcome: Outcome
    error: str | None


class Player:
    """Plays plans through the gateway at `base_url`."""

    def __init__(self, base_url: str, model: str, wording: Wording) -> None:
        self._base_url = base_url
        self._model = model
        self._wording = wording

    async def play(self, plan: Plan, until_s: float, progress: Callable[[], None]) -> list[Answered]:
        """Play every call that is due before `until_s` of the plan; `progress` is called at the end of each."""
        client = Client(self._base_url)
        begin_s = asyncio.get_running_loop().time() + LEAD_S
        try:
            runs = [
                _Run(client, self._model, self._wording, session, begin_s).play(until_s, progress)
                for session in plan.sessions
            ]
            return [answered for found in await asyncio.gather(*runs) for answered in found]
        finally:
            client.close()


class _Run:
    """One session. `_answers` has the model's answers so far."""

    def __init__(self, client: Client, model: str, wording: Wording, session: Session, begin_s: float) -> None:
        self._client = client
        self._model = model
        self._wording = wording
        self._session = session
        self._begin_s = begin_s
        self._answers: dict[int, str] = {}

    async def play(self, until_s: float, progress: Callable[[], None]) -> list[Answered]:
        """Play the session up to its first failed call, since later prompts would quote the missing answer."""
        loop = asyncio.get_running_loop()
        due_s = self._begin_s + self._session.start_s
        found: list[Answered] = []
        for number, call in enumerate(self._session.calls):
            due_s += call.pause_s if number else 0.0
            if due_s >= self._begin_s + until_s:
                break
            await asyncio.sleep(due_s - loop.time())
            found.append(await self._send(number, call, due_s))
            progress()
            if found[-1].error is not None:
                break
            due_s = loop.time()
        return found

    async def _send(self, number: int, call: Call, due_s: float) -> Answered:
        prompt = self._wording.prompt(call.prompt, self._answers)
        body = {"model": self._model, "prompt": prompt, "max_tokens": call.answer[1], "ignore_eos": True}
        timing = await complete(self._client, body, due_s, {SESSION_HEADER: self._session.id})
        error = self._heard(call, timing)
        return Answered(self._outcome(f"{self._session.id}/{number}", call, timing, error), error)

    def _heard(self, call: Call, timing: Timing) -> str | None:
        """Keep the answer; return the error of the answer or of its token counts, if any."""
        if timing.error is not None:
            return timing.error
        self._answers[call.answer[0]] = timing.text
        for name, wanted, got in (
            ("prompt", call.prompt.tokens, timing.prompt_tokens),
            ("answer", call.answer[1], timing.completion_tokens),
            ("answer's text", call.answer[1], self._wording.length(timing.text)),
        ):
            if got != wanted:
                return f"the {name} has {got} tokens, the plan says {wanted}"
        return None

    def _outcome(self, name: str, call: Call, timing: Timing, error: str | None) -> Outcome:
        failed = error is not None
        end_s = asyncio.get_running_loop().time() if timing.end_s is None else timing.end_s
        return Outcome(
            id=name,
            session=self._session.id,
            ending=Ending.REJECTED if failed else Ending.FINISHED,
            worker=timing.worker or "",
            sent_s=timing.started_s - self._begin_s,
            ended_s=end_s - self._begin_s,
            ttft_s=timing.ttft_s,
            prompt_tokens=call.prompt.tokens,
            output_tokens=timing.completion_tokens,
            predicted_tokens=timing.predicted_cached_tokens,
            cached_tokens=timing.cached_tokens,
        )
