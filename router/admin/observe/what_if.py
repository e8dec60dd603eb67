"""What another policy would have chosen at the latest decisions."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from policies.registry import PolicyError
from policies.spec import PolicySpec
from router.admin.documents import Shape
from router.admin.http.problems import AdminError, invalid
from router.admin.operations import Answer, Call, OverProcesses, forwarded, operation
from router.admin.replies import Replies, documents_of
from router.admin.settings.policy import NewPolicy
from router.diagnosis.measured import add_fields
from router.placement.decision_log.summary import Choices, DifferentChoice, Summary
from router.placement.decision_log.what_if import WhatIf, WhatIfRunsError

SHOWN = 20
"""Differences in an answer: the newest."""


class PolicyQuestion(NewPolicy):
    """The policy to ask what it would have chosen. Its fields are those of a policy to use."""


class WhatIfDocument(Shape):
    """What another policy would have chosen at the latest decisions.

    `kept` decisions are in memory. `decisions` of them were made again: those that a policy made and that still have
    the views of all candidates. The first of them is `since_s` seconds old. `elsewhere` chose another worker.
    `recorded.held` counts requests that the policy would have held and that could not wait, and `replayed.held` those
    that this policy would have held. At `without_prompt` decisions the hashes of the prompt are no longer kept, so that
    a rule that reads them sees a prompt without an identity. At `failures` decisions the policy failed and the fallback
    chose. `recorded` and `replayed` have sums, and the means are null without a decision. Times to first token are
    those that the gateway predicted. `differences` are the newest.
    """

    rule: str
    kept: int
    decisions: int
    elsewhere: int
    without_prompt: int
    failures: int
    since_s: float | None
    recorded: Choices
    replayed: Choices
    differences: list[DifferentChoice]
    elsewhere_share: float | None = None
    recorded_ttft_s: float | None = None
    replayed_ttft_s: float | None = None
    recorded_cached_share: float | None = None
    replayed_cached_share: float | None = None


def _merged(_: Call, replies: Replies) -> Answer:
    """Return the sum over several processes."""
    found = documents_of(replies, WhatIfDocument)
    if len(found) < len(replies):
        return forwarded(next(one for one in replies.values() if not one.is_success))
    total, *others = found.values()
    for part in others:
        for name in ("kept", "decisions", "elsewhere", "without_prompt", "failures"):
            setattr(total, name, getattr(total, name) + getattr(part, name))
        total.since_s = max(total.since_s or 0.0, part.since_s or 0.0) or None
        total.differences = sorted([*total.differences, *part.differences], key=lambda one: -one.at_s)[:SHOWN]
        add_fields(total.recorded, part.recorded)
        add_fields(total.replayed, part.replayed)
    return Answer(_with_means(total))


@operation(
    "POST",
    "/admin/v1/what-if",
    takes=PolicyQuestion,
    gives=WhatIfDocument,
    problems={409: "another what-if runs"},
    processes=OverProcesses(_merged, limit_s=60.0),  # a process makes a thousand decisions again beside its traffic
)
async def what_if(call: Call) -> Answer:
    """What another policy would have chosen at the latest decisions. Nothing changes."""
    question: PolicyQuestion = call.body
    spec = PolicySpec(question.rule, question.params, question.hold, question.lanes)
    try:
        with call.process.core.what_ifs.begin(spec) as what_if:
            summary = await _summed(what_if)
    except PolicyError as error:
        raise invalid(str(error)) from None
    except WhatIfRunsError:
        detail = "another what-if runs; ask again when it is over"
        raise AdminError(HTTPStatus.CONFLICT, "what_if_running", detail, headers={"retry-after": "1"}) from None
    return Answer(_document(question.rule, what_if, summary, call.process.now_s()))


async def _summed(what_if: WhatIf) -> Summary:
    """Replay, with a turn of the event loop after each record: streams run on it, too."""
    summary = Summary()
    for one in what_if:
        if one is not None:
            summary.add(one, what_if.kept)
        await asyncio.sleep(0)
    return summary


def _document(rule: str, what_if: WhatIf, summary: Summary, now_s: float) -> WhatIfDocument:
    return _with_means(
        WhatIfDocument(
            rule=rule,
            kept=what_if.kept,
            decisions=summary.decisions,
            elsewhere=summary.elsewhere,
            without_prompt=what_if.without_prompt,
            failures=what_if.failures,
            since_s=None if what_if.since_s is None else round(max(0.0, now_s - what_if.since_s), 3),
            recorded=summary.recorded,
            replayed=summary.replayed,
            differences=summary.first[: -SHOWN - 1 : -1],
        )
    )


def _with_means(document: WhatIfDocument) -> WhatIfDocument:
    recorded, replayed, count = document.recorded, document.replayed, document.decisions
    document.elsewhere_share = document.elsewhere / count if count else None
    document.recorded_ttft_s = recorded.ttft_s / count if count else None
    document.replayed_ttft_s = replayed.ttft_s / count if count else None
    document.recorded_cached_share = _share(recorded)
    document.replayed_cached_share = _share(replayed)
    return document


def _share(choices: Choices) -> float | None:
    return choices.cached_tokens / choices.prompt_tokens if choices.prompt_tokens else None
