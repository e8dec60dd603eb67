"""Every request header that the public port reads, with its effect: the table behind docs/reference/request-headers.md.

A test compares it with the code. All other headers pass to the worker unread.
"""

from __future__ import annotations

from collections.abc import Mapping

_FRAMING = "frames the body; the worker gets the body whole, with `Content-Length`"
_MAY = "[may send one](../how-to/secure-it.md#what-only-some-clients-may-send)"
_CLASS = "[class](../how-to/protect-interactive-traffic.md#which-class-a-request-has) of the request, with `classes`"
_TURN = f"who takes turns within the tenant, with `classes`; for callers that {_MAY}"
_DUE = f"when the first token is due, in ms, with `classes`; for callers that {_MAY}"
_TOLERATED = "part of a preflight, which the gateway answers if `cors_origins` is set"

PLACEMENT: Mapping[str, str] = {
    "X-Session-ID": "session of the request, unless the body has `session_id`; policies and routes may keep it "
    "together",
    "X-Vllm-Priority": "priority, before `priority` in the body: a whole number, lower is earlier. Read and sent on "
    f"only for callers that {_MAY}",
    "X-Warmroute-Expected-Output-Tokens": "expected length of the answer in tokens; without it, or if it is no whole "
    "number, the gateway estimates the length",
    "X-Request-Class": _CLASS,
    "X-LLM-D-Inference-Objective": _CLASS,
    "X-Gateway-Inference-Objective": _CLASS,
    "X-Dynamo-Meta-Policy-Class": _CLASS,
    "X-SMG-Priority": _CLASS,
    "X-LLM-D-Inference-Fairness-Id": _TURN,
    "X-Gateway-Inference-Fairness-Id": _TURN,
    "X-LLM-D-SLO-TTFT-Ms": _DUE,
    "X-SLO-TTFT-Ms": _DUE,
    "X-Dynamo-SLO-TTFT-Ms": _DUE,
    "X-LLM-D-Inference-TTL": f"longest wait, such as `2s`, with `classes`; for callers that {_MAY}",
    "X-Warmroute-Migrate": "`off`: the answer does not [go on at another "
    "worker](../how-to/restart-workers-without-breaking-streams.md) after the death of its own",
    "X-Data-Parallel-Rank": "sent on only for callers that "
    f"{_MAY}; the gateway sets its own on workers with several ranks",
}
"""Headers that placement reads."""
IDENTITY: Mapping[str, str] = {
    "X-Request-Id": "id of the request in response, logs and decisions, if it has 1 to 128 printable characters; "
    "else the gateway makes one",
    "Authorization": "API key, as `Bearer KEY`, if the port has keys",
    "X-Api-Key": "API key, if there is no `Authorization`",
    "X-Warmroute-Receipt": "`1` asks for a [receipt](../how-to/troubleshoot.md#where-a-request-went), if "
    "`headers.receipt` allows it",
    "Traceparent": "trace of the request: passed on, or [replaced](../how-to/trace-requests.md) if traces are on; "
    "exemplars of metrics name it if it is sampled",
    "X-Forwarded-For": "address of the client in the access log, as far as `trusted_proxies` wrote it",
    "X-Forwarded-Proto": "passed on; set if absent",
    "X-Forwarded-Host": "passed on; set to `Host` if absent",
    "Via": "passed on, with the gateway's name added; 508 `loop_detected` if the name is there already",
}
"""Headers about the request and its sender."""
MESSAGE: Mapping[str, str] = {
    "Host": "must be given once; 400 otherwise",
    "Content-Type": "boundary of a multipart form, from which the gateway reads `model`",
    "Content-Encoding": "415 `unsupported_content_encoding`, unless it is `identity`",
    "Content-Length": _FRAMING,
    "Transfer-Encoding": f"only `chunked`; {_FRAMING}",
    "Connection": "`close` ends the connection after the answer; the headers that it names end at the gateway",
    "Upgrade": "`websocket` on paths that take it; ignored otherwise",
    "Expect": "`100-continue` is answered; 417 for any other",
    "Origin": "the answer allows the origin if it is in `cors_origins`",
    "Access-Control-Request-Method": _TOLERATED,
    "Access-Control-Request-Headers": _TOLERATED,
}
"""Headers of HTTP itself."""

READ_HEADERS: Mapping[str, Mapping[str, str]] = {
    "Placement": PLACEMENT,
    "Request and sender": IDENTITY,
    "Message": MESSAGE,
}
