"""All vectors, numbered, by family."""

from itertools import count

from tests.conformance.vectors import chunks, heads, lengths, pipelines, transfer
from tests.conformance.vectors.pieces import ID, Vector

FAMILIES = {
    "transfer coding": transfer.vectors,
    "length": lengths.vectors,
    "chunks": chunks.vectors,
    "heads": heads.vectors,
    "pipelines": pipelines.vectors,
    "cut short": chunks.cuts,
}


def numbered():
    """Return the vectors by family. A vector that two rules make is listed once."""
    numbers, seen = count(10_000), set()
    for family, rules in FAMILIES.items():
        made = []
        for rule, raw in rules():
            if raw not in seen:
                seen.add(raw)
                number = next(numbers)
                made.append(Vector(number, rule, raw.replace(ID, b"%d" % number), cut=rule == chunks.CUT))
        yield family, tuple(made)


VECTORS = dict(numbered())
TOTAL = sum(map(len, VECTORS.values()))
