"""Holds what came of a vector against what a strict reader reads in it."""

import re
from dataclasses import dataclass

from tests.properties.strict import Message, read_message, read_requests

# Lines that the gateway writes itself; each replaces or extends what the client said.
_OURS = re.compile(rb"(?i)(x-forwarded-(for|proto|host)|x-request-id|host|content-length):")
_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"}
)
_OWN_ERROR = re.compile(rb'"code":"(worker_failed|worker_died_in_stream|bad_upstream_response|no_worker_available)"')


@dataclass(frozen=True)
class Verdict:
    """`faults`: what must not be. `refused`: a message that the strict reader reads and the gateway does not;
    `answer`: what the gateway said to it."""

    faults: tuple[str, ...]
    refused: Message | None = None
    answer: Message | None = None


def judge(vector, got, forwarded):
    """`got`: what the client got until the end. `forwarded`: what the worker got for this vector, in order."""
    if got is None:
        return Verdict(("the connection stays open",))
    reading = read_requests(vector.sent)
    try:
        answers = _answers(got, reading.requests)
    except AssertionError:
        return Verdict((f"answers that are not HTTP: {got[:300]!r}",))
    waiting, refused = list(forwarded), None
    for place, request in enumerate(reading.requests):
        if waiting and _same(request, waiting[0]):
            waiting.pop(0)
        elif refused is None and not (_local(request) and place < len(answers) and answers[place].status < 400):
            refused = place
    faults = [f"forwarded, and not what was sent: {message}" for message in waiting]
    if refused is None:
        faults += _unanswered(vector, reading, answers)
        return Verdict(tuple(faults))
    if len(answers) <= refused or answers[refused].status < 400:
        faults.append("neither forwarded nor refused")
        return Verdict(tuple(faults))
    return Verdict(tuple(faults), reading.requests[refused], answers[refused])


def _answers(got, requests):
    """The final answers in `got`, read in the light of what was asked.

    Raises:
        AssertionError: they are not HTTP, or not whole.
    """
    answers = []
    while got:
        asked = requests[len(answers)].method if len(answers) < len(requests) else b""
        message = read_message(got, answer=True, closed=True, bodiless=asked == b"HEAD")
        assert message is not None and message.whole
        got = got[message.end :]
        if message.status != 100:
            answers.append(message)
    return answers


def _local(request):
    """Answered by the gateway itself."""
    return request.target == b"/livez" or request.method == b"OPTIONS"


def _same(request, forwarded):
    """Whether a worker got `request` and nothing else."""
    own = [line for line in forwarded.lines if line not in request.lines]
    return (
        (forwarded.method, forwarded.target, forwarded.content) == (request.method, request.target, request.content)
        and all(_OURS.match(line) for line in own)
        and not any(line.partition(b":")[0].lower() in _HOP_BY_HOP for line in forwarded.lines)
    )


def _unanswered(vector, reading, answers):
    """Each request has an answer; what is no request is refused, or, if it is only incomplete, given up."""
    missing = len(reading.requests) - len(answers)
    if reading.end in ("whole", "closed"):
        return [] if not missing else ["as many answers as requests are due"]
    if missing == -1 and answers[-1].status >= 400:
        return []
    silent = reading.end == "short" and not vector.raw.strip(b"\r\n")
    return [] if silent and not missing else ["what is not a request is not refused"]


def judge_answer(answer, got):
    """`got`: what the client got of a worker's `answer`, with the answer to `PROBE` behind it, until the end."""
    if got is None:
        return Verdict(("the connection stays open",))
    try:
        first = read_message(got, answer=True, closed=True, bodiless=answer.to_head)
        assert first is not None
        faults = _behind(first, got)
    except AssertionError:
        return Verdict((f"no HTTP for the client: {got[:300]!r}",))
    meant = answer.meant if answer.meant is not None and answer.meant.whole else None
    if not first.whole or _OWN_ERROR.search(first.content) or (answer.to_head and first.status == 503):
        return Verdict(faults, meant, first)
    if meant is None or (first.status, first.content) != (meant.status, meant.content):
        faults = (*faults, f"passed as whole: {first}")
    return Verdict(faults)


def _behind(first, got):
    """Behind a whole answer: the probe's, where the connection has been kept. Line breaks are nobody's answer."""
    rest = got[first.end :] if first.whole else b""
    if not rest.strip(b"\r\n"):
        return ()
    probe = read_message(rest, answer=True, closed=True)
    sound = probe is not None and probe.content == b'{"status":"alive"}' and probe.end == len(rest)
    return () if sound else (f"bytes behind the answer: {rest[:200]!r}",)
