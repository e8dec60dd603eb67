from __future__ import annotations

from router.errors import RequestError
from router.limits.caller import CallerLimits, Charge
from router.placement.ticket_life import Tickets
from router.placement.tickets import Ticket
from router.requests.layer import Feature, Layer, LayeredRequest, RequestEnd
from router.requests.layers.limits.charging import answer_tokens, left_tokens, text_tokens


class Limits(Feature):
    """Charges the requests of callers that have limits."""

    def __init__(self, tickets: Tickets) -> None:
        self._tickets = tickets

    def layer(self, request: LayeredRequest) -> Layer | None:
        limits = request.caller.limits
        return None if limits is None else LimitsLayer(self._tickets, request, limits)


class LimitsLayer(Layer):
    __slots__ = ("_charge", "_limits", "_lines", "_request", "_tickets")

    def __init__(self, tickets: Tickets, request: LayeredRequest, limits: CallerLimits) -> None:
        self._tickets = tickets
        self._request = request
        self._limits = limits
        self._charge: Charge | None = None
        """What the request has taken from the limits, once it is admitted."""
        self._lines = b""
        """The x-ratelimit header lines of the response."""

    def started(self, now_s: float) -> RequestError | None:
        """Refuse a caller whose last request was refused, if any request would be refused still.

        So the gateway does not tokenise the prompts of a caller that sends on above its limits.
        """
        refusal = self._limits.peek(now_s) if self._limits.refused else None
        if refusal is not None:
            self._lines = self._limits.lines()
        return refusal

    def identified(self, now_s: float) -> RequestError | None:
        """Charge an estimate: the prompt tokens and, if the path generates text, the output tokens to expect.

        A request that runs no model costs no tokens.
        """
        request, route = self._request.request, self._request.route
        assert request is not None
        tokens = 0
        if route.prefills:  # a WebSocket has no prompt yet, but it needs a bucket that is not empty
            output_tokens = self._tickets.output_lengths.most_tokens(request) if route.generates else 0
            tokens = max(1, request.prompt_tokens + output_tokens)
        admitted = self._limits.admit(tokens, now_s)
        self._lines = self._limits.lines()
        if isinstance(admitted, RequestError):
            return admitted
        self._charge = admitted
        return None

    def response_lines(self, ticket: Ticket | None) -> bytes:
        return self._lines

    def carried(self, tunnel_bytes: int, now_s: float) -> bool:
        charge = self._charge
        return charge is not None and charge.raise_to(text_tokens(tunnel_bytes), now_s)

    def ended(self, end: RequestEnd) -> None:
        """Charge the usage. A client that left pays for what its worker has probably generated.

        A request that no worker has served is free.
        """
        charge, request, route = self._charge, self._request.request, self._request.route
        if charge is None or request is None:
            return
        tokens, served = 0, end.served
        if end.answered is not None:
            tokens = answer_tokens(request, route, end.answered, charge.tokens, end.text_bytes)
        elif served:
            made_tokens = 0
            if end.left and end.ticket is not None and not end.tunnel:
                made_tokens = self._tickets.generated_tokens(end.ticket, end.ended_s)
            tokens = left_tokens(request, route, charge.tokens, end.text_bytes, made_tokens)
        charge.settle(tokens, end.ended_s, served=served)
