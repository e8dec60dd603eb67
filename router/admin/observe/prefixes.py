"""The shared prefixes that save the most prefill work, without their text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from router.admin.documents import PrefixDocument, Prefixes
from router.admin.operations import Answer, Call
from router.diagnosis.prefixes import SharedPrefix

MOST_WORKERS = 16
"""Workers that are named for a prefix."""


async def hottest(call: Call) -> Answer:
    found = call.system.hot_prefixes(call.query["limit"])
    names = {candidate.slot: candidate.id for candidate in call.system.fleet.candidates}
    return Answer(Prefixes(prefixes=[_document(call, one, names) for one in found]))


def merged(parts: Iterable[list[PrefixDocument]], most: int) -> list[PrefixDocument]:
    """Return the hottest prefixes of several processes, which see the same caches and count their own requests."""
    found: dict[str, PrefixDocument] = {}
    for part in parts:
        for one in part:
            known = found.setdefault(one.hash, one)
            if known is not one:
                known.hits = round(known.hits + one.hits, 1)
                known.saved_tokens += one.saved_tokens
                known.name = known.name or one.name
    return sorted(found.values(), key=lambda one: -one.saved_tokens)[:most]


def _document(call: Call, prefix: SharedPrefix, names: Mapping[int, str]) -> PrefixDocument:
    holders = [names[slot] for slot in call.system.residency.holders(prefix.block_hash) if slot in names]
    return PrefixDocument(
        hash=f"{prefix.block_hash:016x}",
        name=prefix.name,
        tokens=prefix.tokens,
        hits=round(prefix.hits, 1),
        saved_tokens=round(prefix.saved_tokens),
        copies=len(holders),
        kv_tokens=prefix.tokens * len(holders),
        workers=sorted(holders)[:MOST_WORKERS],
    )
