"""The shared prefixes that save the most prefill work, without their text."""

from __future__ import annotations

from collections.abc import Mapping

from router.admin.documents import Shape
from router.admin.http.parameters import Query
from router.admin.operations import Answer, Call, OverProcesses, read
from router.admin.replies import Replies, documents_of
from router.diagnosis.prefixes import SharedPrefix

MOST_WORKERS = 16
"""Workers that are named for a prefix."""
_MOST = 100


class PrefixDocument(Shape):
    """A shared prefix. `hash` is that of its last block; no text is kept.

    `hits` counts the first turns that found it cached, of about the last quarter of an hour, and `saved_tokens` the
    prompt tokens that these did not compute. `copies` of it are in the KV caches whose events are followed, on
    `workers` (16 at most), and take `kv_tokens` of them.
    """

    hash: str
    tokens: int
    hits: float
    saved_tokens: int
    copies: int
    kv_tokens: int
    workers: list[str]


class Prefixes(Shape):
    """The prefixes that save the most prompt tokens, best first."""

    prefixes: list[PrefixDocument]


def _merged(call: Call, replies: Replies) -> Answer:
    """Return the hottest prefixes of several processes, which see the same caches and count their own requests."""
    found: dict[str, PrefixDocument] = {}
    for part in documents_of(replies, Prefixes).values():
        for one in part.prefixes:
            known = found.setdefault(one.hash, one)
            if known is not one:
                known.hits = round(known.hits + one.hits, 1)
                known.saved_tokens += one.saved_tokens
    best = sorted(found.values(), key=lambda one: -one.saved_tokens)
    return Answer(Prefixes(prefixes=best[: call.query["limit"]]))


@read(
    "prefixes",
    Prefixes,
    query=(Query("limit", 20, _MOST, "most prefixes to return"),),
    processes=OverProcesses(_merged, lambda *_: {"limit": _MOST}),
)
async def list_prefixes(call: Call) -> Answer:
    """The shared prefixes that save the most prefill work: sizes, hits and copies, and no text."""
    found = call.process.measurements.prefixes.hottest(call.query["limit"])
    names = {candidate.slot: candidate.id for candidate in call.process.fleet.candidates}
    return Answer(Prefixes(prefixes=[_document(call, one, names) for one in found]))


def _document(call: Call, prefix: SharedPrefix, names: Mapping[int, str]) -> PrefixDocument:
    holders = [names[slot] for slot in call.process.residency.holders(prefix.block_hash) if slot in names]
    return PrefixDocument(
        hash=f"{prefix.block_hash:016x}",
        tokens=prefix.tokens,
        hits=round(prefix.hits, 1),
        saved_tokens=round(prefix.saved_tokens),
        copies=len(holders),
        kv_tokens=prefix.tokens * len(holders),
        workers=sorted(holders)[:MOST_WORKERS],
    )
