"""What admission must reach under each load, and what a seed says about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from loadtest.admission.contest import WARM_S, Played, finished, play
from loadtest.admission.loads import burst, mix, overload, tenants
from loadtest.sim.outcome import Ending
from router.placement.admission.classes import Claim


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure of a run. It is met if its mean is at most `most`, or at least `least`. Without both it is shown."""

    text: str
    most: float | None = None
    least: float | None = None

    def met(self, value: float) -> bool:
        return (self.most is None or value <= self.most) and (self.least is None or value >= self.least)


CHAT_P99 = Bar("interactive p99 TTFT, times alone", most=1.3)
BATCH_TIME = Bar("time of all batch work, times unprotected", most=1.1)
BATCH_DONE = Bar("share of batch work done", least=1.0)
CRITICAL_P99 = Bar("critical p99 TTFT, times idle", most=2.0)
NORMAL_P99 = Bar("normal p99 TTFT, times without classes", most=1.1)
OTHERS_MEAN = Bar("others' mean TTFT, times without the heavy tenant", most=1.15)
HEAVY_TIME = Bar("time of the heavy tenant's work, times unprotected")
JAIN = Bar("Jain's index of served seconds", least=0.95)
CACHED = Bar("cached share below the order of arrival", most=0.02)
GOODPUT = Bar("goodput at 2.0, times at 1.0", least=0.95)
DRAINED_S = Bar("seconds from the end of overload to an empty queue", most=30.0)
REFUSED_S = Bar("p99 time to a refusal, seconds", most=0.05)
FALSE = Bar("share of refused requests that would have met the SLO", most=0.03)

Figures = Iterator[tuple[Bar, float]]
Against = Callable[[str, int], Figures]


def _named(name: str) -> Callable[[Claim], bool]:
    return lambda claim: claim.of.name == name


def _last_s(played: Played, wanted: Callable[[Claim], bool]) -> float:
    return max(one.ended_s for one in played.of(wanted, 0.0))


def _burst(times: float) -> Against:
    def against(queue: str, seed: int) -> Figures:
        load, chat, batch = burst(seed, times), _named("interactive"), _named("batch")
        alone, bare, ours = play(load.without(batch), "none", seed), play(load, "none", seed), play(load, queue, seed)
        done = ours.of(batch, 0.0)
        yield CHAT_P99, ours.ttft_s(chat, 0.99) / alone.ttft_s(chat, 0.99)
        yield BATCH_TIME, _last_s(ours, batch) / _last_s(bare, batch)
        yield BATCH_DONE, len(finished(done)) / len(done)

    return against


def _mix(queue: str, seed: int) -> Figures:
    load, critical, normal = mix(seed, 1.2), _named("critical"), _named("normal")
    idle = play(load.without(lambda claim: not critical(claim)), "none", seed)
    bare, ours = play(load, "none", seed), play(load, queue, seed)
    yield CRITICAL_P99, ours.ttft_s(critical, 0.99) / idle.ttft_s(critical, 0.99)
    yield NORMAL_P99, ours.ttft_s(normal, 0.99) / bare.ttft_s(normal, 0.99)


def _heavy(claim: Claim) -> bool:
    return claim.tenant == "tenant-0"


def _one_heavy(tpot_s: float | None) -> Against:
    def against(queue: str, seed: int) -> Figures:
        load = tenants(seed, 1.2, tpot_s)
        ours, bare = play(load, queue, seed), play(load, "none", seed)
        yield OTHERS_MEAN, _others_mean_s(ours) / _others_mean_s(play(load.without(_heavy), queue, seed))
        yield CACHED, bare.cached_share() - ours.cached_share()
        yield HEAVY_TIME, _last_s(ours, _heavy) / _last_s(bare, _heavy)

    return against


def _others_mean_s(played: Played) -> float:
    found = [one.ttft_s for one in played.of(lambda claim: not _heavy(claim)) if one.ttft_s is not None]
    return sum(found) / len(found)


def _all_backlogged(queue: str, seed: int) -> Figures:
    """All tenants send more than their part, so that all always wait."""
    ours = play(tenants(seed, 4.0), queue, seed)
    served: dict[str, float] = {}
    for one in finished(ours.outcomes):
        if WARM_S <= one.ended_s < ours.load.until_s:
            tenant = ours.load.claims[one.session].tenant
            seconds = 55e-6 * (one.prompt_tokens - (one.cached_tokens or 0)) + 5e-4 * one.output_tokens
            served[tenant] = served.get(tenant, 0.0) + seconds
    values = list(served.values())
    yield JAIN, sum(values) ** 2 / (8 * sum(value * value for value in values))


def _overload(queue: str, seed: int) -> Figures:
    twice, once = play(overload(seed, 2.0), queue, seed), play(overload(seed, 1.0), queue, seed)
    yield GOODPUT, _good(twice) / _good(once)
    late = [one for one in twice.outcomes if one.ttft_s is not None and one.sent_s < 600.0]
    yield DRAINED_S, max(one.sent_s + (one.ttft_s or 0.0) for one in late) - 600.0
    refused = [one.ended_s - one.sent_s for one in twice.outcomes if one.ending is Ending.REJECTED]
    if refused:
        yield REFUSED_S, sorted(refused)[int(0.99 * len(refused))]
    spared = [one for one in twice.outcomes if one.session in twice.refused]
    if spared:
        yield FALSE, sum(1 for one in spared if one.ttft_s is not None and one.ttft_s <= 2.0) / len(spared)


def _good(played: Played) -> int:
    """Return the number of requests of the ten minutes whose first token came within the SLO of 2 s."""
    return sum(1 for one in played.of(lambda claim: True) if one.sent_s < 600.0 and (one.ttft_s or 9.0) <= 2.0)


CONTESTS: Mapping[str, Against] = {
    "burst-1": _burst(1.0),
    "burst-2": _burst(2.0),
    "mix": _mix,
    "one-heavy": _one_heavy(None),
    "one-heavy-slo": _one_heavy(0.025),
    "backlogged": _all_backlogged,
    "overload": _overload,
}
