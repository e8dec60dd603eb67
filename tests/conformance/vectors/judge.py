"""Compares the effects of a vector with a strict reader's result for the same bytes."""

import re
from dataclasses import dataclass

from tests.properties.strict import Message, read_message, read_requests

# Header lines that the gateway writes. Each replaces or extends the client's.
_OURS = re.compile(rb"(?i)(x-forwarded-(for|proto|host)|x-request-id|host|via|content-length):")
_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"}
)
_OWN_ERROR = re.compile(rb'"code":"(worker_failed|worker_died_in_stream|bad_upstream_response|no_worker_available)"')


@dataclass(frozen=True)
class Verdict:
    """`faults`: violations found. `refused`: a message that the strict reader accepts and the gateway refuses.
    `answer`: the gateway's response to it."""

    faults: tuple[str, ...]
    refused: Message | None = None
    answer: Message | None = None


def judge(vector, got, forwarded):
    """`got`: the client's bytes until the end. `forwarded`: the worker's requests for this vector, in order."""
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
    """Return the final responses in `got`, read with the request methods in mind.

    Raises:
        AssertionError: the bytes are not HTTP, or incomplete.
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
    return request.target == b"/livez" or request.method == b"OPTIONS"


def _same(request, forwarded):
    """Return whether a worker got `request` and nothing else."""
    own = [line for line in forwarded.lines if line not in request.lines]
    return (
        (forwarded.method, forwarded.target, forwarded.content) == (request.method, request.target, request.content)
        and all(_OURS.match(line) for line in own)
        and not any(line.partition(b":")[0].lower() in _HOP_BY_HOP for line in forwarded.lines)
    )


def _unanswered(vector, reading, answers):
    """Check that each request has a response, and that other bytes are refused, or dropped if incomplete."""
    missing = len(reading.requests) - len(answers)
    if reading.end in ("whole", "closed"):
        return [] if not missing else ["as many answers as requests are due"]
    if missing == -1 and answers[-1].status >= 400:
        return []
    silent = reading.end == "short" and not vector.raw.strip(b"\r\n")
    return [] if silent and not missing else ["what is not a request is not refused"]


def judge_answer(answer, got):
    """`got`: the client's bytes of a worker's `answer` and of the response to `PROBE`, until the end."""
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
    """Check the bytes after a complete response: the probe's, if the connection is kept. Line breaks are ignored."""
    rest = got[first.end :] if first.whole else b""
    if not rest.strip(b"\r\n"):
        return ()
    probe = read_message(rest, answer=True, closed=True)
    sound = probe is not None and probe.content == b'{"status":"alive"}' and probe.end == len(rest)
    return () if sound else (f"bytes after the answer: {rest[:200]!r}",)
