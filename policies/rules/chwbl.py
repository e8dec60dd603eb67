"""Consistent hashing with bounded loads, on the prompt's prefix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.params import Params
from policies.ranking import by_keys, running_requests
from policies.rendezvous import bounded, prefix_key
from policies.rules.rule import Rule
from policies.view import Decision, FleetView, RequestView


class ChwblParams(Params, frozen=True):
    """Defaults as published: the bound KubeAI's, the length of the key that of SGLang's `prefix_hash`."""

    prefix_tokens: Annotated[int, Meta(ge=1, description="Length of the key, rounded down to whole blocks.")] = 256
    load_factor: Annotated[
        float, Meta(ge=1, description="Requests a worker may have, as a multiple of the fleet's mean.")
    ] = 1.25


class Chwbl(Rule[ChwblParams]):
    """The owner of the prompt's first tokens by consistent hashing; if it has more than 1.25 times the mean number of
    requests, the next worker in the key's order that has not.

    The mean counts the new request, so some worker is always within the bound. A prompt without a full block has no
    key and goes where the fewest requests are.

    Source: Mirrokni, Thorup and Zadimoghaddam, Consistent hashing with bounded loads (SODA 2018); KubeAI's
    `PrefixHash` strategy, `prefix_hash` of SGLang's model gateway. Rendezvous hashing stands for their rings of
    hundreds of points per worker. KubeAI takes its key from the first characters of the first user message, which
    cannot be seen in tokens; and its latest code asks whether one request *more* would still be within the bound,
    which no worker passes while a fleet has fewer requests than workers.
    """

    params_type = ChwblParams
    terms: ClassVar[Mapping[str, str]] = {
        "requests": "Requests placed on the worker.",
        "bound": "Most requests that the worker may have by the load bound.",
    }

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """Rank in the key's order, workers over the bound last."""
        key = prefix_key(request, self._params.prefix_tokens)
        if key is not None:
            return bounded(key, fleet, self._params.load_factor, "prefix")
        keys = (running_requests, self._last_used.of)
        return by_keys(fleet, keys, "no full block to hash: fewest requests", {"requests": running_requests})
