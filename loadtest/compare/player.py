"""Play a plan over HTTP with the player of `loadtest.load`, and report each call as the simulator would."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from loadtest.load.order import Dataset, Order
from loadtest.load.player import Player
from loadtest.load.prompts import Prompts
from loadtest.load.records import Answered
from loadtest.load.seen import Kind
from loadtest.sim.outcome import Ending, Outcome
from loadtest.workload.plan import Plan
from loadtest.workload.wording import Wording

LEAD_S = 0.3
"""Time between the begin of a run and second 0 of its plan, so that the first prompts are written by then."""


@dataclass(slots=True)
class LiveCalls:
    """The calls as they ended, the errors among them, and the client's own lag in seconds at regular times."""

    outcomes: list[Outcome] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)


async def play(
    url: str, model: str, wording: Wording, plan: Plan, until_s: float, progress: Callable[[], None]
) -> LiveCalls:
    """Play every call that is due before `until_s` of the plan; `progress` is called at the end of each.

    An answer is an error, too, if prompt or text have another length than the plan says.
    """
    order = Order(
        url=url,
        model=model,
        dataset=Dataset(),
        session_header="x-session-id",
        ignore_eos=True,
        num_prompts=None,
        duration_s=until_s,
        timed=True,
    )
    played = LiveCalls()

    def tell(one: Answered) -> None:
        if wrong := _miscounted(wording, one):
            one.seen.end(Kind.BROKEN, wrong)
        if one.seen.error is not None:
            played.errors.append(one.seen.error)
        played.outcomes.append(_outcome(one))
        progress()

    prompts = Prompts(order, wording, {})
    await Player(order, prompts, iter(plan.sessions), tell, played.lags_s.append).play(time.monotonic() + LEAD_S)
    return played


def _miscounted(wording: Wording, one: Answered) -> str:
    seen, call = one.seen, one.call
    if seen.kind is not Kind.COMPLETE:
        return ""
    for name, wanted, got in (
        ("prompt", call.prompt.tokens, seen.prompt_tokens),
        ("answer's text", call.answer[1], wording.length(seen.text)),
    ):
        if got != wanted:
            return f"the {name} has {got} tokens, the plan says {wanted}"
    return ""


def _outcome(one: Answered) -> Outcome:
    seen = one.seen
    return Outcome(
        id=f"{one.session.id}/{one.turn - 1}",
        session=one.session.id,
        ending=Ending.FINISHED if seen.error is None else Ending.REJECTED,
        worker=seen.worker,
        sent_s=seen.began_s - one.begin_s,
        ended_s=(seen.ended_s if seen.last_s is None else seen.last_s) - one.begin_s,
        ttft_s=seen.ttft_s,
        prompt_tokens=one.call.prompt.tokens,
        output_tokens=seen.completion_tokens,
        predicted_tokens=seen.predicted_cached_tokens,
        cached_tokens=seen.cached_tokens,
    )
