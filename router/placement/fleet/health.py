"""Health of one endpoint, from probes (active) and from the outcomes of traffic (passive).

    STARTING --probe ok--> READY --failures in a row--> UNHEALTHY --probe ok, time up--> HALF_OPEN --trial ok--> READY
                                                            ^------------------trial failed-------+

An ejected worker comes back through HALF_OPEN: one trial request at a time while other workers are ready. The next
request that could go there is the trial (see `router.placement.selection`). So a recovered worker gets traffic as soon
as it answers a probe, even if the policy would avoid its empty cache. Pressure (503) is not a fault: the worker is
only avoided for a moment. Thresholds count consecutive failures, as in Envoy's outlier detection and the Kubernetes
probes.

A refused or broken connection and a wrong answer are evidence of a fault. A time-out is none while the worker makes
progress: a full event loop answers `/health` late and still serves. `router.placement.fleet.lateness` decides which
time-outs count, and whether the worker is needed in spite of them.
"""

from __future__ import annotations

from enum import StrEnum

from router.config.model import HealthConfig

AVOID_S = 0.25
"""How long a worker is avoided after one failure, or a refusal without Retry-After: a few scheduler steps."""
RETRY_AFTER_CAP_S = 30.0
"""The longest Retry-After that is respected. Probes continue during it."""
REOPEN_CAP_S = 60.0
"""The longest wait between trials of a worker that answers probes and fails its trials. The wait doubles up to it."""


_HALF_OPEN_AFTER_S = 1.0
"""Time after which a worker that traffic ejected gets one trial request, if its probes succeed."""


class WorkerState(StrEnum):
    """State of an endpoint. In READY it takes traffic, in HALF_OPEN a single trial request at a time."""

    STARTING = "starting"
    READY = "ready"
    ASLEEP = "asleep"
    UNHEALTHY = "unhealthy"
    HALF_OPEN = "half_open"
    DRAINING = "draining"


SERVING = (WorkerState.READY, WorkerState.HALF_OPEN)
"""States in which an endpoint gets requests. Half-open counts as ready for readiness checks: a platform that sends
requests only to ready gateways would otherwise never send the trial request."""


class Health:
    """The health of one endpoint. `condition` is STARTING, READY, UNHEALTHY or HALF_OPEN."""

    def __init__(self, config: HealthConfig) -> None:
        self._config = config
        self.condition = WorkerState.STARTING
        self.reason = "not probed yet"
        self.avoid_until_s = 0.0
        self.refused_until_s = 0.0
        self.trial_running = False
        self.kept_since_s: float | None = None
        """Since when the worker serves only because too few others would be left; None if it is not so."""
        self.silent_since_s: float | None = None
        """When the first of the probes began whose time-outs alone ejected the worker; None if it is not so."""
        self._probe_failures = 0
        self._late_probes = 0
        """How many of the consecutive failures are time-outs."""
        self._late_since_s = 0.0
        self._probe_successes = 0
        self._traffic_failures = 0
        self._failed_trials = 0
        self._reopen_at_s = 0.0

    # probes and traffic

    @property
    def probed(self) -> bool:
        return self._probe_failures + self._probe_successes > 0

    def probe_succeeded(self, now_s: float) -> None:
        self._probe_failures = self._late_probes = 0
        self.kept_since_s = None
        self._probe_successes += 1
        if self.condition is WorkerState.STARTING:
            self._become_ready("probe succeeded")
        elif self.condition is WorkerState.UNHEALTHY and now_s >= self._reopen_at_s:
            self.condition = WorkerState.HALF_OPEN
            self.reason = "probes succeed again; waiting for one request to succeed"
            self.trial_running = False

    def probe_failed(self, reason: str, now_s: float) -> None:
        """Record that a probe was refused, broke off or got a wrong answer.

        If the worker was ejected already, its failed trials are forgotten: the next process behind the endpoint is not
        to blame for them.
        """
        self._probe_successes = 0
        self._probe_failures += 1
        if self.condition is WorkerState.STARTING:
            self.reason = f"not up yet: {reason}"
        elif self.condition is WorkerState.UNHEALTHY:
            self._failed_trials = 0
            self._reopen_at_s = now_s
            self.reason = f"probe failed: {reason}"
        elif self._probe_failures >= self._config.failure_threshold:
            silent = self._late_probes == self._probe_failures
            self._eject(f"{self._probe_failures} probes in a row failed: {reason}", now_s)
            self.silent_since_s = self._late_since_s if silent else None

    def probe_late(self, reason: str, began_s: float, now_s: float, *, needed: bool) -> None:
        """Record a probe that began at `began_s` and timed out, while the worker made no progress.

        A worker that is `needed` is not ejected by time-outs alone, only avoided while others answer.
        """
        if not self._late_probes:
            self._late_since_s = began_s
        self._late_probes += 1
        overdue = self._probe_failures + 1 >= self._config.failure_threshold
        alone = self._late_probes > self._probe_failures
        if needed and overdue and alone and self.condition in SERVING:
            self._probe_failures += 1
            self.kept_since_s = now_s if self.kept_since_s is None else self.kept_since_s
            self.avoid_until_s = now_s + self._config.probe_interval_s + self._config.probe_timeout_s
        else:
            self.kept_since_s = None
            self.probe_failed(reason, now_s)

    def progressed(self) -> None:
        """Forget the probes that timed out: the worker has made progress since."""
        self._probe_failures -= self._late_probes
        self._late_probes = 0
        self.kept_since_s = None

    def traffic_failed(self, reason: str, now_s: float, *, trial: bool) -> None:
        """Record that a request could not be sent, or got no answer. While half-open, only the trial's outcome
        counts."""
        self.avoid_until_s = max(self.avoid_until_s, now_s + AVOID_S)
        self._traffic_failures += 1
        if self.condition is WorkerState.HALF_OPEN and trial:
            self._failed_trials += 1
            self._eject(f"trial request failed: {reason}", now_s + self._trial_wait_s())
        elif self.condition is WorkerState.READY and self._traffic_failures >= self._config.failure_threshold:
            self._eject(f"{self._traffic_failures} requests in a row failed: {reason}", now_s + _HALF_OPEN_AFTER_S)

    def traffic_succeeded(self, *, trial: bool, complete: bool) -> None:
        """Record a first token or, with `complete`, a complete answer.

        Only a complete answer resets the count of consecutive failures: a worker may begin all its streams and break
        off each of them.
        """
        if complete:
            self._traffic_failures = 0
        if self.condition is WorkerState.HALF_OPEN and trial:
            self._failed_trials = 0
            self._become_ready("trial request succeeded")

    def avoid(self, now_s: float, retry_after_s: float | None) -> None:
        """Avoid the worker for the Retry-After of its 503, or for a moment."""
        if retry_after_s is None:
            self.avoid_until_s = max(self.avoid_until_s, now_s + AVOID_S)
        else:
            self.refused_until_s = max(self.refused_until_s, now_s + min(retry_after_s, RETRY_AFTER_CAP_S))

    def _become_ready(self, reason: str) -> None:
        self.condition = WorkerState.READY
        self.reason = reason
        self.trial_running = False
        self.silent_since_s = None
        self.avoid_until_s = self.refused_until_s = 0.0
        self._traffic_failures = 0

    def _eject(self, reason: str, reopen_at_s: float) -> None:
        self.condition = WorkerState.UNHEALTHY
        self.reason = reason
        self.trial_running = False
        self.kept_since_s = self.silent_since_s = None
        self._probe_successes = 0
        self._traffic_failures = 0
        self._reopen_at_s = reopen_at_s

    def _trial_wait_s(self) -> float:
        return min(_HALF_OPEN_AFTER_S * 2.0**self._failed_trials, REOPEN_CAP_S)
