"""Loads whose requests have classes and tenants. Each is the same for every queue and one seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random

from loadtest.sim.sessions import Session, TextCall
from loadtest.workload.plan import Call
from loadtest.workload.text import Piece, Text
from router.placement.admission.classes import Claim, RequestClass

WORKERS = 1
SEQS = 256
"""vLLM's max_num_seqs: what a worker runs at once."""


@dataclass(frozen=True, slots=True)
class Load:
    """Sessions with their claims, and the classes. Sessions in `spared` are not refused."""

    classes: tuple[RequestClass, ...]
    sessions: tuple[Session, ...]
    claims: Mapping[str, Claim]
    until_s: float
    spared: frozenset[str] = frozenset()

    def without(self, leaves: Callable[[Claim], bool]) -> Load:
        return replace(self, sessions=tuple(one for one in self.sessions if not leaves(self.claims[one.id])))


class Drawing:
    """Collects sessions."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.sessions: list[Session] = []
        self.claims: dict[str, Claim] = {}
        self._text = 0

    def text(self, tokens: int) -> Piece:
        self._text += 1
        return self._text, tokens

    def add(self, claim: Claim, start_s: float, *lengths: tuple[int, int], before: Piece | None = None) -> str:
        """Add a session that sends calls of (prompt, answer) tokens one after the other; all begin with `before`."""
        name = f"{claim.of.name}-{len(self.sessions)}"
        shared = () if before is None else (before,)
        calls = [Call(Text.of((*shared, self.text(prompt))), self.text(answer)) for prompt, answer in lengths]
        self.sessions.append(Session(name, start_s, tuple(TextCall(replace(one, max_tokens=None)) for one in calls)))
        self.claims[name] = claim
        return name

    def arrivals(self, rate: float, from_s: float, until_s: float) -> Iterator[float]:
        at_s = from_s + self.rng.expovariate(rate)
        while at_s < until_s:
            yield at_s
            at_s += self.rng.expovariate(rate)

    def load(self, classes: tuple[RequestClass, ...], until_s: float, spared: frozenset[str] = frozenset()) -> Load:
        return Load(classes, tuple(self.sessions), self.claims, until_s, spared)


def burst(seed: int, times: float) -> Load:
    """Draw llm-d-batch-gateway#491: chats of 512 tokens in and 128 out beside three jobs of 250 requests per worker.

    Chats come at 7.5 per second and worker for 30 s, then at 1 for 30 s, and so on. The jobs keep `times` as many
    requests in flight as the fleet runs at once. Their answers have lognormal lengths, 500 on average with a deviation
    of 400, at most 2,048.
    """
    chat = RequestClass("interactive", share=1.0, floor=0.75, ttft_s=0.5, tpot_s=0.03, max_wait_s=30.0)
    batch = RequestClass("batch", share=0.0)
    drawing = Drawing(seed)
    rng, until_s = drawing.rng, 180.0
    for window in range(int(until_s / 30.0)):
        rate = WORKERS * (7.5 if window % 2 == 0 else 1.0)
        for at_s in drawing.arrivals(rate, window * 30.0, window * 30.0 + 30.0):
            drawing.add(Claim(chat), at_s, (512, 128))
    lanes = int(times * SEQS * WORKERS)
    for lane in range(lanes):
        count = len(range(lane, 750 * WORKERS, lanes))
        lengths = [(512, min(2_048, max(1, round(rng.lognormvariate(5.967, 0.703))))) for _ in range(count)]
        drawing.add(Claim(batch, tenant=f"job-{lane % 3}"), 5.0, *lengths)
    return drawing.load((chat, batch), until_s)


def mix(seed: int, times: float) -> Load:
    """Draw llm-d-benchmark's priority_mix: a fifth critical, three fifths normal, a fifth batch, in fixed order.

    Prompts have 1,800 tokens and answers 512. Requests come at `times` the rate that the fleet serves.
    """
    critical = RequestClass("critical", share=0.4, floor=0.5, ttft_s=1.0, tpot_s=0.08)
    normal, batch = RequestClass("normal", share=0.6), RequestClass("batch", share=0.0)
    drawing, until_s = Drawing(seed), 120.0
    order = (normal, critical, normal, batch, normal)
    for number in range(int(times * MIX_RATE * until_s)):
        drawing.add(Claim(order[number % 5]), number / (times * MIX_RATE), (1_800, 512))
    return drawing.load((critical, normal, batch), until_s)


MIX_RATE = 4.0 * WORKERS
"""Requests of `mix` per second that the fleet serves when it never waits for them, measured."""


def tenants(seed: int, times: float, tpot_s: float | None = None) -> Load:
    """Draw eight tenants with prefixes of their own, of which the first sends ten times the others' requests.

    All together send `times` the rate that the fleet serves. `tpot_s` is the service level of their class.
    """
    one = RequestClass("default", tpot_s=tpot_s)
    drawing, until_s = Drawing(seed), 150.0
    for tenant in range(8):
        claim = Claim(one, tenant=f"tenant-{tenant}")
        prefixes = [drawing.text(3_000) for _ in range(4)]
        rate = times * TENANTS_RATE * (10.0 if tenant == 0 else 1.0) / 17.0
        for at_s in drawing.arrivals(rate, 0.0, until_s):
            lengths = (round(drawing.rng.uniform(500, 1_500)), round(drawing.rng.uniform(100, 300)))
            drawing.add(claim, at_s, lengths, before=drawing.rng.choice(prefixes))
    return drawing.load((one,), until_s)


TENANTS_RATE = 6.0 * WORKERS
"""Requests of `tenants` per second that the fleet serves when it never waits for them, measured."""


def overload(seed: int, times: float) -> Load:
    """Draw ten minutes at `times` the rate that the fleet serves, and two minutes at 0.7 times."""
    one = RequestClass("default", ttft_s=2.0, max_wait_s=2.0)
    drawing, until_s = Drawing(seed), 720.0
    spared: set[str] = set()
    for rate, from_s, to_s in ((times, 0.0, 600.0), (0.7, 600.0, until_s)):
        for at_s in drawing.arrivals(rate * OVERLOAD_RATE, from_s, to_s):
            name = drawing.add(Claim(one), at_s, (1_500, round(drawing.rng.uniform(100, 300))))
            if drawing.rng.random() < 0.02:
                spared.add(name)
    return drawing.load((one,), until_s, frozenset(spared))


OVERLOAD_RATE = 7.0 * WORKERS
"""Requests of `overload` per second that the fleet serves when it never waits for them, measured."""
