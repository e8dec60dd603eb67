"""The steps of the flow that write the response, and end the load reservation of its attempt."""

from __future__ import annotations

from functools import partial
from typing import Final

from router.gateway.flow.answer.relay import ResponseProgress
from router.gateway.flow.attempt.attempt import Attempt
from router.gateway.flow.outbound import OutboundRequest
from router.gateway.flow.services import GatewayServices
from router.gateway.http.client.tunnel import Tunnel
from router.gateway.http.upstream.headers import connection_line, own_reply, retry_after
from router.placement.request import Usage
from router.requests.answers.error_format import error_body
from router.requests.answers.usage import find_usage
from router.requests.layer import RequestEnd
from router.requests.pins import stored_response_id

_NOTHING_USED: Final = Usage(0, 0)
CLIENT_LEFT = 499
"""Status in log and metrics if the client left before the end of its answer (nginx's convention)."""


# a worker's answer


def respond(services: GatewayServices, outbound: OutboundRequest, attempt: Attempt) -> None:
    """Begin the response with the attempt's answer. Its later reads go directly to the relay."""
    now_s, plan, relay = services.time(), outbound.plan, outbound.relay
    connection, response, ticket = attempt.connection, attempt.response, attempt.ticket
    assert connection is not None and response is not None
    if plan is not None:
        plan.opened(ticket, now_s)
    services.edges.opened(outbound, attempt, now_s)
    if outbound.begun:
        relay.annotate(b"".join([layer.seam_comment(ticket) for layer in outbound.layers]))
    outbound.begun = True
    if outbound.route.stores:
        response_id = stored_response_id(connection.pieces)
        if response_id is not None:
            services.pins.learn(response_id, ticket.candidate.id)
    relay.attach(connection, attempt.answer_filter)
    relay.open(response, attempt.pass_to(relay), services.lines_of(outbound, ticket), outbound.promise())
    # After the client has its first byte.
    outbound.body = b""  # no further attempt will need it
    outbound.client.body_done(outbound.kept_bytes)
    if outbound.ttft_s is None:
        services.log.first_event(outbound, now_s)
    outbound.flow.answer_began(now_s, response.events)
    outbound.arm()


def finish(services: GatewayServices, outbound: OutboundRequest, attempt: Attempt) -> None:
    """Release the attempt, whose answer is complete, with the usage it reported."""
    now_s = services.time()
    if attempt.switched:
        services.edges.cancel(attempt, now_s)
        return
    usage = outbound.usage = _usage(outbound, attempt)
    outbound.answered = usage if attempt.status < 400 else _NOTHING_USED
    plan = outbound.plan
    own = usage if plan is None else plan.finished(attempt.ticket, usage)
    services.edges.finish(outbound, attempt, own, now_s)
    outbound.output_tokens = attempt.ticket.output_tokens if own is usage else usage.completion_tokens
    request = attempt.ticket.request
    if request.prompt is None or request.model is None or usage.prompt_tokens is None:
        return
    services.identity.observe_usage(request.model, request.prompt, usage.prompt_tokens)


def _usage(outbound: OutboundRequest, attempt: Attempt) -> Usage:
    """Return the usage that the complete answer reports, and tell the rewrites."""
    relay = outbound.relay
    if relay.connection is None and attempt.connection is not None:
        relay.attach(attempt.connection, attempt.answer_filter)
    relay.flush()
    tail = relay.tail()
    usage = find_usage(tail)
    for rewrite in outbound.rewrites:
        rewrite.answered(attempt, tail, usage)
    return usage


def finish_leg(services: GatewayServices, outbound: OutboundRequest, attempt: Attempt) -> None:
    """Release a leg that is not the last, whose answer is complete."""
    plan = outbound.plan
    assert plan is not None
    plan.answered(attempt, services.time())


def fail(services: GatewayServices, outbound: OutboundRequest, attempt: Attempt) -> None:
    attempt.release(reusable=False)
    services.edges.fail(attempt, services.time())


def cancel(services: GatewayServices, outbound: OutboundRequest, _: object) -> None:
    services.edges.cancel(outbound.flow.take_dropped(), services.time())


def complete(services: GatewayServices, outbound: OutboundRequest, attempt: Attempt) -> None:
    relay = outbound.relay
    outbound.keeps_open = relay.end_as_event() if relay.out is ResponseProgress.COMMENTS else relay.end()
    attempt.release(reusable=True)


def pass_error(services: GatewayServices, outbound: OutboundRequest, attempt: Attempt) -> None:
    assert attempt.connection is not None and attempt.response is not None
    services.edges.fail(attempt, services.time())
    relay, lines = outbound.relay, services.lines_of(outbound, attempt.ticket)
    relay.attach(attempt.connection, attempt.answer_filter)
    if relay.out is not ResponseProgress.COMMENTS:
        relay.open(attempt.response, attempt.pass_to(relay), lines, outbound.promise())


def switch(services: GatewayServices, outbound: OutboundRequest, attempt: Attempt) -> None:
    """Write the 101 response and connect both sides."""
    connection, response = attempt.connection, attempt.response
    assert connection is not None and response is not None
    outbound.flow.tunnel_began()
    relay, client = outbound.relay, outbound.client
    relay.status = 101
    outbound.begun = True
    metered = partial(_meter, services, outbound) if outbound.layers else None
    tunnel = outbound.tunnel = Tunnel(connection.write, client.output.write, services.time, metered)
    connection.tunnel = tunnel.from_worker
    connection.worker_writable = client.input.set_reading
    relay.attach(connection, None)
    relay.open(response, b"", services.lines_of(outbound, attempt.ticket), keep_alive=True)
    client.open_tunnel(tunnel)
    outbound.arm()


def _meter(services: GatewayServices, outbound: OutboundRequest) -> None:
    """Tell the layers what the tunnel has carried. If one of them objects, the next sweep ends it."""
    tunnel, now_s = outbound.tunnel, services.time()
    for layer in outbound.layers:
        if tunnel is not None and layer.carried(tunnel.carried_bytes, now_s):
            outbound.overdrawn = True
            outbound.client.deadline_s = 0.0


# without a worker's answer


def comment(services: GatewayServices, outbound: OutboundRequest, _: object) -> None:
    """Write an SSE comment, between two events; before the first one, write a stream's head."""
    outbound.relay.comment(services.lines_of(outbound, None), not outbound.promise())
    if outbound.flow.attempt is not None:
        outbound.flow.attempt.comment()


def reply(services: GatewayServices, outbound: OutboundRequest, _: object) -> None:
    """Answer with the request's error. No part of a worker's answer has gone to the client."""
    error = outbound.error
    assert error is not None
    relay, head, spec = outbound.relay, outbound.head, error.kind.spec
    if relay.out is ResponseProgress.COMMENTS:
        services.log.error(outbound, spec.code, "stream" if outbound.begun else "before_first")
        outbound.keeps_open = relay.break_off(error.kind, error.message)
        return
    services.log.error(outbound, spec.code, "request" if outbound.request is None else "before_first")
    lines = services.lines_of(outbound, None) + retry_after(error) + connection_line(head, close=not outbound.promise())
    answer = own_reply(spec.status, error_body(error, head.path), lines, without_body=head.method == "HEAD")
    relay.status = spec.status
    relay.response_bytes += len(answer)
    outbound.client.output.write(answer)
    outbound.keeps_open = True


def break_off(services: GatewayServices, outbound: OutboundRequest, _: object) -> None:
    """End a begun answer with the error: as an event of the stream if possible, otherwise by truncation."""
    relay, error = outbound.relay, outbound.error
    assert error is not None
    if relay.out is ResponseProgress.NOTHING:  # a defect came before the head was written
        reply(services, outbound, None)
        return
    relay.flush()
    services.log.error(outbound, error.kind.spec.code, "stream")
    outbound.keeps_open = relay.break_off(error.kind, error.message)


def abort_client(services: GatewayServices, outbound: OutboundRequest, _: object) -> None:
    """Close the client's connection at once."""
    outbound.client.abort()


def end(services: GatewayServices, outbound: OutboundRequest) -> None:
    """Release what the plan holds, write the log, and let the client send its next request."""
    services.placements.ended(outbound)
    if outbound.plan is not None:
        if outbound.left_in is not None:
            outbound.plan.client_left()
        outbound.plan.end(services.time())
    status, now_s = _status(outbound), services.time()
    _end_layers(outbound, status, now_s)
    services.log.close(outbound, status, now_s)
    outbound.error = None  # its traceback holds this request, and so the body
    outbound.relay.close()
    if outbound.left_in is None:
        outbound.client.request_ended(outbound.keeps_open and outbound.promise())


def _end_layers(outbound: OutboundRequest, status: int, now_s: float) -> None:
    tunnel, answered, left = outbound.tunnel, outbound.answered, outbound.left_in is not None
    ended = RequestEnd(
        status,
        now_s,
        now_s - outbound.arrived_s,
        outbound.ttft_s,
        outbound.usage,
        outbound.error_code,
        outbound.ticket,
        answered,
        outbound.relay.text_bytes if tunnel is None else tunnel.carried_bytes,
        served=outbound.begun or answered is not None or (left and outbound.ticket is not None),
        left=left,
        tunnel=tunnel is not None,
    )
    for layer in outbound.layers:
        layer.ended(ended)


def _status(outbound: OutboundRequest) -> int:
    """Return the status for log and metrics. A client ends a tunnel by leaving."""
    return outbound.relay.status if outbound.left_in is None or outbound.tunnel is not None else CLIENT_LEFT
