from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from router.placement.fleet.endpoints import Candidate, KvReport
from router.placement.fleet.roles import FORMAT


class KvFormat(NamedTuple):
    """What two workers must share for one to read the other's KV cache, as probes and the operator say.

    vLLM compares version, model path and type of the KV cache when two workers meet, and refuses the transfer. Members
    of `reported` count where both workers report them.
    """

    version: str | None
    roots: tuple[str | None, ...]
    block_tokens: int
    stated: str | None
    reported: KvReport

    def understands(self, other: KvFormat) -> bool:
        both = zip(self.reported, other.reported, strict=True)
        return self[:-1] == other[:-1] and all(here == there or None in (here, there) for here, there in both)


def kv_format(candidate: Candidate, model: str | None) -> KvFormat:
    endpoint, facts = candidate.endpoint, candidate.endpoint.facts
    roots = () if facts is None else tuple(card.root for card in facts.models if model in (None, card.id))
    version = None if facts is None else facts.version
    return KvFormat(version, roots, candidate.block_tokens, endpoint.labels.get(FORMAT), endpoint.kv_report)


def alike_formats(senders: Sequence[Candidate], receivers: Sequence[Candidate], model: str | None) -> NDArray[np.bool_]:
    formats: dict[KvFormat, int] = {}
    rows, columns = (
        np.array([formats.setdefault(kv_format(one, model), len(formats)) for one in side])
        for side in (senders, receivers)
    )
    table = np.array([[one.understands(other) for other in formats] for one in formats])
    places = [np.array([one.endpoint.id for one in side]) for side in (senders, receivers)]
    found: NDArray[np.bool_] = table[np.ix_(rows, columns)] & (places[0][:, np.newaxis] != places[1][np.newaxis, :])
    return found
