"""Each session on its own worker, unless that one has too much to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.params import Params
from policies.ranking import by_keys, running_requests
from policies.rendezvous import bounded, text_key
from policies.rules.rule import Rule
from policies.view import Decision, FleetView, RequestView


class SessionAffinityParams(Params, frozen=True):
    """The bound is that of `chwbl`."""

    load_factor: Annotated[
        float, Meta(ge=1, description="Requests a worker may have, as a multiple of the fleet's mean.")
    ] = 1.25


class SessionAffinity(Rule[SessionAffinityParams]):
    """The owner of the request's session id by consistent hashing; if it has more than 1.25 times the mean number of
    requests, the next worker in the session's order that has not. Without a session id: fewest requests.

    A session comes home as soon as its owner is within the bound again. It keeps no table of sessions, so nothing
    grows and several gateways agree.

    Source: `consistent_hash` of vllm-router and session routing of vLLM's production-stack (a hash ring on a header),
    with the bound of Mirrokni et al. (SODA 2018), which those lack.
    """

    params_type = SessionAffinityParams
    terms: ClassVar[Mapping[str, str]] = {
        "requests": "Requests placed on the worker.",
        "bound": "Most requests that the worker may have by the load bound.",
    }

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        if request.session_id:
            return bounded(text_key(request.session_id), fleet, self._params.load_factor, "session")
        keys = (running_requests, self._last_used.of)
        return by_keys(fleet, keys, "no session id: fewest requests", {"requests": running_requests})
