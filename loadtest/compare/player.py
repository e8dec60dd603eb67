"""Play a plan over HTTP. Sessions start at their times, and each call follows the end of the one before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from loadtest.load.http import Client
from loadtest.load.seen import COMPLETIONS, STREAMED, Seen, observe
from loadtest.sim.outcome import Ending, Outcome
from loadtest.workload.plan import Call, Plan, Session
from loadtest.workload.wording import Wording

LEAD_S = 0.3
"""Time between the begin of a run and second 0 of its plan, so that every session's task is waiting by then."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One call as the simulator would report it, and its error, if any."""

    outcome: Outcome
    error: str | None


class Player:
    def __init__(self, base_url: str, model: str, wording: Wording) -> None:
        self._base_url = base_url
        self._model = model
        self._wording = wording

    async def play(self, plan: Plan, until_s: float, progress: Callable[[], None]) -> list[Answered]:
        """Play every call that is due before `until_s` of the plan; `progress` is called at the end of each."""
        client = Client(self._base_url)
        begin_s = asyncio.get_running_loop().time() + LEAD_S
        try:
            runs = [self._session(client, session, begin_s, until_s, progress) for session in plan.sessions]
            return [answered for found in await asyncio.gather(*runs) for answered in found]
        finally:
            client.close()

    async def _session(
        self, client: Client, session: Session, begin_s: float, until_s: float, progress: Callable[[], None]
    ) -> list[Answered]:
        """Play a session up to its first failed call, since later prompts would quote the missing answer."""
        loop = asyncio.get_running_loop()
        due_s = begin_s + session.start_s
        found: list[Answered] = []
        answers: dict[int, str] = {}
        for number, call in enumerate(session.calls):
            due_s += call.pause_s if number else 0.0
            if due_s >= begin_s + until_s:
                break
            await asyncio.sleep(due_s - loop.time())
            body = {"model": self._model, "prompt": self._wording.prompt(call.prompt, answers), **STREAMED}
            body |= {"max_tokens": call.answer[1], "ignore_eos": True}
            headers = {"x-session-id": session.id}
            seen = await observe(client, COMPLETIONS, body, intended_s=due_s, headers=headers)
            answers[call.answer[0]] = seen.text
            error = seen.error or self._miscounted(call, seen)
            found.append(Answered(_outcome(f"{session.id}/{number}", session.id, call, seen, begin_s, error), error))
            progress()
            if error is not None:
                break
            due_s = loop.time()
        return found

    def _miscounted(self, call: Call, seen: Seen) -> str | None:
        """Return the error if prompt or text have another length than the plan says."""
        for name, wanted, got in (
            ("prompt", call.prompt.tokens, seen.prompt_tokens),
            ("answer's text", call.answer[1], self._wording.length(seen.text)),
        ):
            if got != wanted:
                return f"the {name} has {got} tokens, the plan says {wanted}"
        return None


def _outcome(name: str, session: str, call: Call, seen: Seen, begin_s: float, error: str | None) -> Outcome:
    end_s = seen.ended_s if seen.last_s is None else seen.last_s
    return Outcome(
        id=name,
        session=session,
        ending=Ending.FINISHED if error is None else Ending.REJECTED,
        worker=seen.worker,
        sent_s=seen.began_s - begin_s,
        ended_s=end_s - begin_s,
        ttft_s=seen.ttft_s,
        prompt_tokens=call.prompt.tokens,
        output_tokens=seen.completion_tokens,
        predicted_tokens=seen.predicted_cached_tokens,
        cached_tokens=seen.cached_tokens,
    )
