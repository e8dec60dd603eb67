"""Queries of death: find out which request bodies crash the workers that they reach, and which to refuse.

A worker's death counts against a body only under two conditions. The body waited there for its first token when the
process ended, and at most `MAX_BODIES` distinct bodies did so. A broken connection alone does not prove a death. It
opens an incident, which needs proof (a refused connection, or a new process at the same address) and lapses without
it. Only the digest of a body is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

MAX_BODIES = 4
"""If more distinct bodies wait for their first token, the cause cannot be determined."""
MAX_DEATHS = 2
"""Deaths after which a body is refused."""
PROOF_S = 5.0
"""How long an incident waits for proof. vLLM's server answers 500 when its engine has died, and then exits."""
DYING_S = 0.5
"""How long a dying process may still accept connections, which it then breaks. No worker restarts within this time."""
ERROR_DOUBT_S = 1.0
"""How long a server error keeps a body from further workers. A vLLM server that dies stops listening within it."""
BODIES_KEPT = 4_096
SERVED_KEPT = 4_096
SERVED_S = 60.0
INCIDENTS_KEPT = 1_024


class BodyVerdict(Enum):
    """Which workers may receive a body."""

    FREE = "free"
    """All: the body is not suspected."""
    ONE_MORE = "one_more"
    """One further worker at a time: the body may have crashed one."""
    NO_MORE = "no_more"
    """Only workers that answered it with a server error, and may be about to exit."""
    DOUBTED = "doubted"
    """None, until it is known whether the lost workers have died."""
    REFUSED = "refused"
    """None: `MAX_DEATHS` workers have died with it."""


class Deaths(Protocol):
    """Proven deaths by body. Each worker's death counts once, whichever process reports it."""

    def add(self, body: int, worker: str, at_s: float) -> None:
        """Record that `worker` died at `at_s` while `body` waited for its first token."""

    def times(self, body: int) -> tuple[float, ...]:
        """Return when workers died with `body`, the last `MAX_DEATHS` of them, oldest first."""

    def clear(self, body: int) -> None: ...

    @property
    def latest_s(self) -> float:
        """Time of the last death; 0 if there was none. A quick test for the hot path."""


class OwnDeaths:
    """`Deaths` of one process, for the last `BODIES_KEPT` bodies."""

    def __init__(self) -> None:
        self.latest_s = 0.0
        self._bodies: OrderedDict[int, tuple[float, ...]] = OrderedDict()

    def add(self, body: int, worker: str, at_s: float) -> None:
        self.latest_s = max(self.latest_s, at_s)
        self._bodies[body] = (*self._bodies.pop(body, ()), at_s)[-MAX_DEATHS:]
        if len(self._bodies) > BODIES_KEPT:
            self._bodies.popitem(last=False)

    def times(self, body: int) -> tuple[float, ...]:
        return self._bodies.get(body, ())

    def clear(self, body: int) -> None:
        self._bodies.pop(body, None)


class Served:
    """Bodies that were answered in the last minute or two, at most 2 * `SERVED_KEPT`. They are not suspected."""

    __slots__ = ("_due_s", "_earlier", "_latest")

    def __init__(self) -> None:
        self._latest: set[int] = set()
        self._earlier: set[int] = set()
        self._due_s = 0.0

    def add(self, body: int, now_s: float) -> None:
        latest = self._latest
        if now_s >= self._due_s or len(latest) >= SERVED_KEPT:
            self._earlier = latest if now_s < self._due_s + SERVED_S else set()
            latest = self._latest = set()
            self._due_s = now_s + SERVED_S
        latest.add(body)

    def holds(self, body: int, now_s: float) -> bool:
        return now_s < self._due_s + SERVED_S and (body in self._latest or body in self._earlier)


@dataclass(slots=True)
class Incident:
    """A failure at `opened_s` of a worker at which `bodies` waited for their first tokens. It may have died.

    `lost`: its connection broke; otherwise it answered with a server error. `ambiguous`: there were too many bodies.
    `proven_s`: when its death was proven.
    """

    worker: str
    opened_s: float
    bodies: set[int]
    lost: bool
    ambiguous: bool = False
    proven_s: float | None = None


class QueryOfDeathTracker:
    """Records suspected and proven deaths. A proven death counts for `keep_s`; 0 switches the tracker off.

    Times are monotonic seconds.
    """

    def __init__(self, keep_s: float) -> None:
        self.deaths: Deaths = OwnDeaths()
        """The proven deaths; replaced by a shared record if there are several processes."""
        self._keep_s = keep_s
        self._incidents: dict[str, list[Incident]] = {}
        self.served = Served()
        self._counts = {"blamed": 0, "ambiguous": 0}

    @property
    def enabled(self) -> bool:
        return self._keep_s > 0

    @property
    def stirred(self) -> bool:
        """Whether an incident is open or any death was ever recorded: a quick test for the hot path."""
        return bool(self._incidents) or self.deaths.latest_s > 0.0

    def active(self, now_s: float) -> bool:
        self.expire(now_s)
        return bool(self._incidents) or now_s - self.deaths.latest_s < self._keep_s

    # observations

    def known(self, worker: str, connected_s: float, *, lost: bool) -> Incident | None:
        """Return the incident that a failure on a connection made at `connected_s` belongs to; None if it is new.

        A connection made some time after a worker was lost leads to another process, so its failure is a new incident.
        """
        for incident in self._incidents.get(worker, ()):
            if incident.lost is not lost and incident.proven_s is None:
                continue
            until_s = max(incident.opened_s + DYING_S, incident.proven_s or 0.0)
            if connected_s <= until_s or not (lost or incident.proven_s):
                return incident
        return None

    def open(self, worker: str, body: int, others: Iterable[int], now_s: float, *, lost: bool) -> Incident:
        """Open an incident: `worker` failed a request with `body` while `others` waited there for their first tokens,
        too."""
        self.expire(now_s)
        incident = Incident(worker, now_s, {body}, lost)
        before = {
            known for earlier in self._incidents.get(worker, ()) if lost and earlier.lost for known in earlier.bodies
        }
        for other in {*others} - before - {body}:
            self.join(incident, other)
        if sum(map(len, self._incidents.values())) < INCIDENTS_KEPT:
            self._incidents.setdefault(worker, []).append(incident)
        return incident

    def join(self, incident: Incident, body: int) -> None:
        if incident.ambiguous or body in incident.bodies:
            return
        incident.bodies.add(body)
        if len(incident.bodies) > MAX_BODIES:
            incident.ambiguous = True
            incident.bodies.clear()
        elif incident.proven_s is not None:
            self._blame(body, incident)

    def gone(self, worker: str, now_s: float) -> list[str]:
        """Count the open incidents of `worker` as deaths. Return ``blamed`` or ``ambiguous`` for each.

        A lost connection and error answers that are open at the same time belong to one death.
        """
        self.expire(now_s)
        incidents = [incident for incident in self._incidents.get(worker, ()) if incident.proven_s is None]
        lost = [incident for incident in incidents if incident.lost] or incidents[:1]
        for incident in incidents:
            if incident not in lost:
                for body in incident.bodies:
                    self.join(lost[0], body)
                self._incidents[worker].remove(incident)
        return [self._died(incident, now_s) for incident in lost]

    def _died(self, incident: Incident, now_s: float) -> str:
        """Count the death. Keep the incident, because the connections of a dead worker do not all break at once."""
        incident.proven_s = now_s
        outcome = "ambiguous" if incident.ambiguous else "blamed"
        self._counts[outcome] += 1
        for body in incident.bodies:
            self._blame(body, incident)
        return outcome

    def _blame(self, body: int, incident: Incident) -> None:
        if not self.served.holds(body, incident.opened_s):
            self.deaths.add(body, incident.worker, incident.opened_s)

    def lives(self, worker: str, asked_s: float) -> None:
        """Record that the same process answered a question asked at `asked_s`: earlier lost connections were no deaths.

        Incidents from server errors stay open, since a server may send an error first and exit afterwards.
        """
        incidents = self._incidents.get(worker, [])
        self._keep(
            worker, [one for one in incidents if one.proven_s is not None or not one.lost or one.opened_s >= asked_s]
        )

    def survived(self, body: int) -> None:
        """Clear `body`, which received its first token or its whole answer."""
        for incidents in self._incidents.values():
            for incident in incidents:
                incident.bodies.discard(body)
        self.deaths.clear(body)

    def expire(self, now_s: float) -> None:
        for worker, incidents in list(self._incidents.items()):
            self._keep(worker, [incident for incident in incidents if now_s - incident.opened_s < PROOF_S])

    def _keep(self, worker: str, incidents: list[Incident]) -> None:
        if incidents:
            self._incidents[worker] = incidents
        else:
            self._incidents.pop(worker, None)

    # verdicts

    def waits(self, worker: str, now_s: float) -> bool:
        incidents = self._incidents.get(worker, ())
        return any(now_s - incident.opened_s < PROOF_S and incident.proven_s is None for incident in incidents)

    def verdict(self, body: int, now_s: float) -> BodyVerdict:
        if self.served.holds(body, now_s):
            return BodyVerdict.FREE
        lost = self._proven(body, now_s)
        if lost >= MAX_DEATHS:
            return BodyVerdict.REFUSED
        lost += sum(incident.lost for incident in self._open(body, now_s))
        if lost >= MAX_DEATHS:
            return BodyVerdict.DOUBTED
        suspected = lost + len(self.erred(body, now_s))
        if suspected >= MAX_DEATHS:
            return BodyVerdict.NO_MORE
        return BodyVerdict.ONE_MORE if suspected else BodyVerdict.FREE

    def erred(self, body: int, now_s: float) -> list[str]:
        """Return the workers that have just answered `body` with a server error."""
        return [one.worker for one in self._open(body, now_s) if not one.lost and now_s - one.opened_s < ERROR_DOUBT_S]

    def companions(self, body: int) -> set[int]:
        incidents = [one for incidents in self._incidents.values() for one in incidents if body in one.bodies]
        return {other for incident in incidents for other in incident.bodies} - {body}

    def refused_for_s(self, body: int, now_s: float) -> float:
        return max(0.0, self.deaths.times(body)[-1] + self._keep_s - now_s)

    def _proven(self, body: int, now_s: float) -> int:
        """Return the number of deaths within `keep_s` before the last one; 0 if the last one is older than `keep_s`."""
        times_s = self.deaths.times(body)
        if not times_s or now_s - times_s[-1] >= self._keep_s:
            return 0
        return sum(times_s[-1] - at_s < self._keep_s for at_s in times_s)

    def _open(self, body: int, now_s: float) -> list[Incident]:
        return [
            incident
            for incidents in self._incidents.values()
            for incident in incidents
            if body in incident.bodies and incident.proven_s is None and now_s - incident.opened_s < PROOF_S
        ]

    def statistics(self) -> dict[str, Any]:
        """Return the number of incidents, and of deaths by outcome (``blamed``, ``ambiguous``)."""
        return {"incidents": sum(map(len, self._incidents.values())), "deaths": dict(self._counts)}
