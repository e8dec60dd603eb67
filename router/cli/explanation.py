"""Turn the answer of ``POST /admin/v1/explain`` into sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from backends.foreign_json import read_json
from router.admin.observe.explain import (
    AdmissionExplanation,
    CandidateView,
    ExplanationDocument,
    HandoverExplanation,
)
from router.cli.formats import seconds
from router.placement.learning.speed import PRIOR_TOKEN_S


def sentences(document: bytes) -> Iterator[str]:
    """Yield what would happen, then each candidate with one sentence for each term of its cost, best first."""
    explained = read_json(document, ExplanationDocument)
    yield _outcome(explained)
    if explained.admission is not None:
        yield _turn(explained.admission)
    if explained.handover is not None:
        yield _handed_over(explained.handover)
    if explained.migration is not None:
        yield _goes_on(explained.migration.reason)
    served = explained.choice is not None
    for index, other in enumerate(explained.passed_over):
        which = "The fallback" if index or not served else "The model"
        yield f"{which} {other.model} has no worker for it: {other.reason.rstrip('.')}."
    if explained.passed_over and served:
        yield f"The fallback {explained.model} would serve the request."
    model = explained.model or "no model"
    yield f"The prompt has {explained.prompt_tokens:,} tokens for {model}; the policy is {explained.policy}."
    if any(one.speed == "prior" for one in explained.candidates):
        yield f"No worker's speed is learned yet: times below assume {PRIOR_TOKEN_S * 1e6:.0f} us per prompt token."
    for rank, candidate in enumerate(explained.candidates, 1):
        yield ""
        yield from _candidate(rank, candidate, explained)
    if explained.handover is not None:
        yield from _pairs(explained.handover)
    if explained.excluded:
        yield ""
        yield "Not considered:"
        yield from _excluded(explained.excluded)
    for other in explained.passed_over:
        yield ""
        yield f"Not considered for {other.model}:"
        yield from _excluded(other.excluded)


def _goes_on(reason: str | None) -> str:
    if reason is None:
        return "If its worker dies, the answer goes on at another one."
    if reason == "whole_answer":
        return "If its worker dies, another one is asked: the answer is no stream."
    return f"If its worker dies after its first token, the stream ends with an error: {reason}."


def _excluded(reasons: Mapping[str, str]) -> Iterator[str]:
    return (f"  {worker}: {reason}." for worker, reason in reasons.items())


def _outcome(explained: ExplanationDocument) -> str:
    reason = f"{explained.reason.rstrip('.')}."
    match explained.action:
        case "dispatch":
            return f"Dispatch: the request would go to {explained.choice} now. Reason: {reason}"
        case "hold":
            wait = f"at most {seconds(explained.hold_s)} in the gateway"
            return f"Hold: the request would wait {wait}, then go to {explained.choice}. Reason: {reason}"
        case "queue":
            return f"Queue: the request would wait in the gateway until a worker is ready. Reason: {reason}"
    return f"Reject: the gateway would refuse the request. Reason: {reason}"


def _turn(turn: AdmissionExplanation) -> str:
    soon = "" if turn.ttft_s is None else f", first token in about {turn.ttft_s:.2f} s"
    return (
        f"In class {turn.request_class}, {turn.place} wait before it{soon}. {turn.action.capitalize()}: {turn.reason}."
    )


def _handed_over(handover: HandoverExplanation) -> str:
    if not handover.pays:
        return f"No KV handover: {handover.reason.rstrip('.')}."
    best = handover.pairs[0]
    return f"KV handover: {best.prefill} would compute the prompt, and {best.decode} would answer: {handover.reason}."


def _pairs(handover: HandoverExplanation) -> Iterator[str]:
    for pair in handover.pairs:
        yield ""
        yield f"KV handover from {pair.prefill} to {pair.decode}, cost {seconds(pair.cost_s)}"
        yield from _terms(pair.terms, handover.terms)
    for one in handover.alone if handover.pairs else ():
        yield ""
        yield f"{one.worker} alone, cost {seconds(one.cost_s)}"
        yield from _terms(one.terms, handover.terms)


def _candidate(rank: int, candidate: CandidateView, explained: ExplanationDocument) -> Iterator[str]:
    cost = "" if candidate.cost is None else f", cost {candidate.cost:,.4g} {candidate.unit}".rstrip()
    yield f"{rank}. {candidate.worker}{cost}"
    prompt_tokens = candidate.cached_tokens + candidate.uncached_tokens
    cached = f"{candidate.cached_tokens:,} of {prompt_tokens:,} prompt tokens"
    yield f"   Its cache holds {cached}; the view of the cache is {candidate.residency}."
    error = f", with a standard error of {seconds(candidate.error_s)}" if candidate.error_s else ""
    yield f"   It would send the first token after about {seconds(candidate.first_token_s)}{error}."
    yield from _terms(candidate.terms, explained.terms)


def _terms(terms: Mapping[str, float], meanings: Mapping[str, str]) -> Iterator[str]:
    for name, value in terms.items():
        meaning = meanings.get(name)
        said = f": {meaning[0].lower()}{meaning[1:].rstrip('.')}" if meaning else ""
        yield f"   {name} is {_amount(name, value)}{said}."


def _amount(name: str, value: float) -> str:
    if name.endswith("_s"):
        return seconds(value)
    return f"{value:,.0f} tokens" if name.endswith("_tokens") else f"{value:,.4g}"
