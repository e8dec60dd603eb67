"""The identification of a request, before the first event of its flow."""

from __future__ import annotations

from typing import NamedTuple

from router.errors import RequestError
from router.gateway.flow.outbound import OutboundRequest
from router.gateway.flow.services import GatewayServices
from router.tokenization.body.parsed_body import ParsedBody
from router.tokenization.prompt_identifier import PendingPrompt


class Unidentified(NamedTuple):
    """What is left to do for a request: its body, while `parsed` is None, and then its prompt."""

    parsed: ParsedBody | None
    pending: PendingPrompt | None


def identify_now(services: GatewayServices, outbound: OutboundRequest) -> Unidentified | RequestError | None:
    """Do the part of the identification that does not wait. Return what is left, or the refusal of the request."""
    for layer in outbound.layers:
        if (refusal := layer.started(services.time())) is not None:
            return refusal
    try:
        parsed = services.identifier.read_now(outbound)
        pending = None if parsed is None else _begin(services, outbound, parsed)
    except RequestError as error:
        return error
    return _identified(services, outbound) if parsed is not None and pending is None else Unidentified(parsed, pending)


async def identify(services: GatewayServices, outbound: OutboundRequest, left: Unidentified) -> RequestError | None:
    """Do the part of the identification that waits. Return the refusal of the request, if any."""
    parsed, pending = left
    try:
        if parsed is None:
            parsed = await services.identifier.read(outbound)
            pending = _begin(services, outbound, parsed)
            if pending is not None:
                outbound.arm()
        if pending is not None:
            await services.identifier.identify(outbound, parsed, pending)
    except RequestError as error:
        return error
    return _identified(services, outbound)


def _begin(services: GatewayServices, outbound: OutboundRequest, parsed: ParsedBody) -> PendingPrompt | None:
    if outbound.route.by_prefix:
        services.features.read(outbound, parsed)
    if parsed.stream:
        outbound.flow.comments_from(outbound.arrived_s)
    return services.identifier.identify_now(outbound, parsed)


def _identified(services: GatewayServices, outbound: OutboundRequest) -> RequestError | None:
    for layer in outbound.layers:
        if (refusal := layer.identified(services.time())) is not None:
            return refusal
    return None
