"""What another policy would have chosen at the latest decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from http import HTTPStatus

from policies.registry import PolicyError
from policies.spec import PolicySpec
from router.admin.documents import PolicyQuestion, WhatIfDocument
from router.admin.http.problems import AdminError, invalid
from router.admin.operations import Answer, Call
from router.diagnosis.measured import add_fields
from router.placement.decision_log.summary import Choices, Summary
from router.placement.decision_log.what_if import WhatIf, WhatIfRunsError

SHOWN = 20
"""Differences in an answer: the newest."""


async def show(call: Call) -> Answer:
    """Answer with the comparison, for the decisions that this process keeps in memory."""
    question: PolicyQuestion = call.body
    spec = PolicySpec(question.rule, question.params, question.hold, question.lanes)
    try:
        with call.system.dispatcher.what_ifs.begin(spec) as what_if:
            summary = await _summed(what_if)
    except PolicyError as error:
        raise invalid(str(error)) from None
    except WhatIfRunsError:
        detail = "another what-if runs; ask again when it is over"
        raise AdminError(HTTPStatus.CONFLICT, "what_if_running", detail, headers={"retry-after": "1"}) from None
    return Answer(_document(question.rule, what_if, summary, call.system.now_s()))


def merged(parts: Sequence[WhatIfDocument]) -> WhatIfDocument:
    """Return the sum over several processes."""
    total = parts[0]
    for part in parts[1:]:
        for name in ("kept", "decisions", "elsewhere", "without_prompt", "failures"):
            setattr(total, name, getattr(total, name) + getattr(part, name))
        total.since_s = max(total.since_s or 0.0, part.since_s or 0.0) or None
        total.differences = sorted([*total.differences, *part.differences], key=lambda one: -one.at_s)[:SHOWN]
        add_fields(total.recorded, part.recorded)
        add_fields(total.replayed, part.replayed)
    return _with_means(total)


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
