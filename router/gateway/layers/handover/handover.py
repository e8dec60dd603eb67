"""One request on two workers: a prefill worker computes its prompt, and a decode worker receives the KV cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from secrets import token_hex
from typing import ClassVar, Final

from backends.vllm.handover.answer_apis import ANSWER_APIS, Members
from backends.vllm.handover.connector import Legs, Reporter, with_token_ids
from backends.vllm.handover.parameters import HandoverError, TransferParams
from backends.vllm.handover.prefill_answer import PrefillAnswer
from backends.vllm.handover.prefiller_header import header_line
from backends.vllm.handover.request_body import decode_body, prefill_body
from router.errors import RequestError
from router.gateway.flow.outcomes import AttemptEvent, Failure, Outcome
from router.gateway.flow.plan import After, PlanHost, PlannedAttempt, PlannedLeg, RequestPlan, Within
from router.gateway.layers.handover.cached_tokens import CachedTokens
from router.gateway.layers.handover.concurrent_prefill import ConcurrentPrefill
from router.gateway.layers.handover.prefill_peers import HandoverParts
from router.placement.fleet.endpoints import FleetEndpoint
from router.placement.fleet.health import WorkerState
from router.placement.handover.links import Transfer
from router.placement.handover.plan import HANDOVER_FIRST_EVENT_S, LegPlan
from router.placement.request import FailurePoint, Usage
from router.placement.retry_budget import tried
from router.placement.tickets import Ticket
from router.requests.outgoing import AnswerFilter, OutgoingBody

PREFILL_S = 120.0
"""Longest time of a prefill. Then another prefill worker gets it, or one worker computes the whole request."""
HANDED_OVER: Final = "handed_over"
PREFILL_FAILED: Final = "prefill_failed"
NOTHING_HANDED_OVER: Final = "nothing_handed_over"
LEASE_EXPIRED: Final = "lease_expired"
DECODE_WORKER_LOST: Final = "decode_worker_lost"
DECODE_FAILED: Final = "decode_failed"
STOPPED: Final = "stopped"


class KvHandover(RequestPlan):
    """The handover of one request: its two reservations, and what the prefill worker handed over.

    It is settled once, with its outcome. After any outcome but `HANDED_OVER` the request runs on one worker.
    With a connector whose decode worker waits for the KV cache, both workers get their requests `together`.
    """

    steps: ClassVar[int] = 2
    """Requests that the gateway sends to workers."""
    __slots__ = (
        "_api", "_beside", "_cached_tokens", "_handovers", "_lease_end_s", "_legs", "_members",
        "_outcome", "_params", "_prefill_sent_s", "_received", "_sent_s", "_transfer", "decode", "prefill", "together",
    )  # fmt: skip

    def __init__(self, handovers: HandoverParts, members: Members, plan: LegPlan, decode: Ticket) -> None:
        assert decode.prefill is not None
        self._handovers = handovers
        self._members = members
        self.decode = decode
        self._api = ANSWER_APIS[decode.request.path]
        self.prefill = decode.prefill
        """The placement of the prefill that runs, or ran last."""
        self._legs = self._named()
        at_once = plan.answer.runs == "beside" and self.steps == 2
        self.together = at_once and not handovers.peers.lacks(self.prefill.candidate)
        """The decode request does not wait for the prefill's answer."""
        self._params: TransferParams | None = None
        """What the decode worker gets to find the KV cache. It is sent once."""
        if self.together:
            self._params = handovers.connector.decode_params(self._legs, None)
        self._prefill_sent_s = 0.0
        self._sent_s = 0.0
        """When the decode request was sent; if it was sent before the prefill had ended, when that ended."""
        self._lease_end_s = math.inf if self.together else 0.0
        self._cached_tokens: int | None = None
        self._received = False
        self._outcome = ""
        self._transfer: Transfer | None = None
        """The transfer whose time is measured, from the decode request on."""
        self._beside: ConcurrentPrefill | None = None
        """The prefill that runs at the same time as the decode."""
        handovers.heartbeat.listen()

    def _named(self) -> Legs:
        # Clients choose request ids, and another gateway may send to the same workers.
        transfer_id = f"{self.decode.request.id}-{token_hex(8)}"
        peers = self._handovers.peers
        return Legs(
            transfer_id=transfer_id, prefill=peers.of(self.prefill.candidate), decode=peers.of(self.decode.candidate)
        )

    @property
    def first(self) -> Ticket:
        return self.decode if self.together else self.prefill

    @property
    def noted(self) -> Ticket:
        return self.prefill

    @property
    def sequence(self) -> int:
        return 1 if self.together else self.steps

    def leg(self, ticket: Ticket, now_s: float) -> PlannedLeg:
        prefills = ticket is self.prefill
        name = "prefill" if prefills else "decode"
        return PlannedLeg(name, prefills, self.limit_s(ticket, now_s))

    def request_id(self, ticket: Ticket) -> bytes | None:
        """Return the X-Request-Id by which the two workers pair their requests."""
        if self.steps == 1 or not self._handovers.connector.same_request_id:
            return None
        if ticket is not self.prefill and ticket is not self.decode:
            return None
        return self._legs.transfer_id.encode("latin-1")

    # the prefill

    def _again(self, ticket: Ticket) -> None:
        """Let another prefill worker compute the prompt, all of it: transfer parameters are used once."""
        self.prefill = self.decode.prefill = ticket
        self._legs = self._named()
        leg = self.decode.record.leg
        assert leg is not None
        self.decode.record.leg = leg._replace(worker=ticket.candidate.id)

    def prefilled(self, body: bytes, status: int, now_s: float) -> Usage:
        connector, usage = self._handovers.connector, Usage()
        try:
            if status != 200:
                raise HandoverError(f"the prefill worker answered {status}")
            answer = self._api.read(body)
            usage = Usage(answer.prompt_tokens, None, answer.cached_tokens)
            self._cached_tokens = answer.cached_tokens
            handed = connector.handed_over(answer)
            self._introduce(answer)
            if not self.together:
                params = connector.decode_params(self._legs, handed)
                self._params = with_token_ids(params, answer.prompt_token_ids)
        except HandoverError:
            self.settle(NOTHING_HANDED_OVER)
        self._handovers.metrics.handover_steps.observe(now_s - self._prefill_sent_s, ("prefill",))
        if self.together:
            self._sent_s = now_s
            self._transfer = self._handovers.planner.transfer(self.decode, now_s)
        elif connector.lease_s is None:
            self._lease_end_s = math.inf
        else:
            config, gap_s = self._handovers.config, self._handovers.heartbeat.gap_s(self._prefill_sent_s)
            self._lease_end_s = now_s - gap_s + config.lease_s - config.lease_margin_s
        return usage

    def _introduce(self, answer: PrefillAnswer) -> None:
        """Learn what the answer says about its worker.

        Raises:
            HandoverError: the decode worker was sent other facts.
        """
        before = self._legs.prefill
        peer = self._handovers.connector.introduced(before, answer)
        if peer is None:
            return
        self._handovers.peers.learn(self.prefill.candidate, peer)
        self._legs = replace(self._legs, prefill=peer)
        if self.together and peer != before:
            raise HandoverError("the prefill worker has restarted")

    @property
    def nothing_handed_over(self) -> bool:
        """Whether the prefill worker's answer says that the decode worker gets nothing."""
        return self._outcome == NOTHING_HANDED_OVER

    @property
    def needed_to_free(self) -> bool:
        """Whether a decode worker that was sent its request keeps the blocks until the prefill has ended, even if the
        client has left."""
        return self._sent_s > 0.0 and not self._handovers.connector.dropped_decode_frees

    # the answer

    def answered(self, attempt: PlannedAttempt, now_s: float) -> None:
        usage = self.prefilled(attempt.content, attempt.status, now_s)
        self.finish_prefill(attempt, usage, now_s)

    def finish_prefill(self, attempt: PlannedAttempt, usage: Usage, now_s: float) -> None:
        """Release a prefill that has ended. Its whole answer is its first token."""
        tickets = self._handovers.tickets
        if attempt.status < 400:
            tickets.first_token(attempt.ticket, now_s)
        tickets.finished(attempt.ticket, usage, now_s, status=attempt.status)

    def next_leg(self, now_s: float) -> Ticket | None:
        if not self._outcome:
            endpoint = self.decode.candidate.endpoint
            ready = self.decode.trial or endpoint.state is WorkerState.READY
            if now_s >= self._lease_end_s:
                self.settle(LEASE_EXPIRED)
            elif not self.decode.candidate.live or not ready:
                self.settle(DECODE_WORKER_LOST)
            else:
                return self.decode
        self.end(now_s)
        return None

    # the prefill beside the decode

    def begin_beside(self, host: PlanHost) -> None:
        if self.together:
            self._beside = beside = ConcurrentPrefill(self._handovers, self, host)
            beside.start()

    @property
    def beside(self) -> FleetEndpoint | None:
        return None if self._beside is None else self._beside.endpoint

    def give_up_beside(self, reason: str) -> None:
        if self._beside is not None:
            self._beside.give_up(reason)

    def holds_back(self, outcome: Outcome, attempt: PlannedAttempt) -> bool:
        return self._beside is not None and self._beside.holds_back(outcome, attempt)

    def beside_ended(self, attempt: PlannedAttempt, problem: str | None, now_s: float) -> Sequence[Outcome]:
        beside, self._beside = self._beside, None
        if problem is not None:
            self.settle(PREFILL_FAILED)
            attempt.give_up(problem)
            return ()
        attempt.limit_s = now_s - attempt.since_s + HANDOVER_FIRST_EVENT_S
        return () if beside is None else beside.held_back()

    def _leave_prefill(self, *, finish: bool) -> None:
        """Go on without a prefill that runs beside the decode. `finish` it if the decode worker may wait for it."""
        beside, self._beside = self._beside, None
        if beside is not None:
            beside.leave(finish=finish)

    # failures

    def failed(self, attempt: PlannedAttempt, within: Within, now_s: float) -> Ticket | After:
        ticket, failure, handovers = attempt.ticket, attempt.failure, self._handovers
        assert failure is not None
        self._leave_prefill(finish=failure.given_up)
        if ticket is self.prefill:
            again = self._prefill_again(ticket, failure, within, now_s)
            if again is None:
                self.end(now_s)
                return After.ALONE
            return again
        if self.together and self._outcome in (PREFILL_FAILED, NOTHING_HANDED_OVER):
            handovers.tickets.not_handed_over(ticket, now_s, failure.reason)
            return After.ALONE
        if not self.depends_at(ticket):
            return After.USUAL
        self.settle(DECODE_FAILED)
        if failure.cause is AttemptEvent.LOST or failure.point in (FailurePoint.CONNECT, FailurePoint.STOPPING):
            return After.USUAL  # the worker is gone, or takes no request
        return After.ALONE if handovers.dispatcher.run_plain(ticket, failure.reason, now_s) else After.USUAL

    def _prefill_again(self, ticket: Ticket, failure: Failure, within: Within, now_s: float) -> Ticket | None:
        """Release a failed prefill, and return its placement on another worker; None if there is none."""
        tickets, planner = self._handovers.tickets, self._handovers.planner
        why = (failure.point, now_s, failure.reason, failure.retry_after_s)
        try:
            allowed = within(tried(ticket))
        except RequestError:
            tickets.failed(ticket, *why)
            allowed = frozenset()
        again = planner.retry_prefill(ticket, *why, within=allowed, receiver=self.decode.candidate.endpoint.id)
        if again is None:
            self.settle(PREFILL_FAILED)
        else:
            self._handovers.metrics.retries.add(1.0, (failure.point.value,))
            self._again(again)
        return again

    # the decode

    def depends_at(self, ticket: Ticket) -> bool:
        """Return whether `ticket` is the placement of the decode, and its answer has not begun."""
        return ticket is self.decode and not self._outcome

    def limit_s(self, ticket: Ticket, now_s: float) -> float:
        """Return the longest time until the first event of an attempt that is sent now.

        A decode worker has read the blocks before its first event. So no answer comes from blocks that it may have read
        after their lease.
        """
        if not self.depends_at(ticket):
            return PREFILL_S if ticket is self.prefill else math.inf
        if self.together:
            return PREFILL_S + HANDOVER_FIRST_EVENT_S
        return min(HANDOVER_FIRST_EVENT_S, self._lease_end_s - now_s)

    def sent_limit_s(self, ticket: Ticket, now_s: float) -> float | None:
        # The time to dial has passed, or the parameters were not sent after all.
        return None if self.together else self.limit_s(ticket, now_s)

    def own_body(self, ticket: Ticket, now_s: float) -> OutgoingBody | None:
        body = self.outgoing(ticket, now_s)
        return None if body is None else OutgoingBody(body, self.rewrite(ticket))

    def outgoing(self, ticket: Ticket, now_s: float) -> bytes | None:
        """Return the body for the ticket's worker; None for the client's own. Transfer parameters are given once."""
        if ticket is self.prefill:
            self._prefill_sent_s = now_s
            connector = self._handovers.connector
            params = connector.prefill_params(self._legs)
            return prefill_body(self._members, params, self._api, ends_by_length=connector.ends_by_length)
        params, self._params = self._params, None
        if not self.depends_at(ticket):
            return None
        if now_s >= self._lease_end_s:
            self.settle(LEASE_EXPIRED)
            return None
        self._sent_s = now_s
        if not self.together:
            self._transfer = self._handovers.planner.transfer(ticket, now_s)
        return decode_body(self._members, params)

    def rewrite(self, ticket: Ticket) -> AnswerFilter | None:
        """Return the rewrite of the answer of `ticket`, if its worker reports the tokens that it received as cached."""
        if ticket is not self.decode or self._handovers.connector.cached_tokens_from is not Reporter.PREFILL:
            return None
        return CachedTokens(lambda: self._cached_tokens)

    def opened(self, ticket: Ticket, now_s: float) -> None:
        if self.depends_at(ticket):
            self._receive()
            self._handovers.metrics.handover_steps.observe(now_s - self._sent_s, ("transfer",))
            if self._transfer is not None and ticket.request.stream:  # else the whole answer has been computed
                self._handovers.planner.transferred(self._transfer, now_s)
            self.settle(HANDED_OVER)

    def _receive(self) -> None:
        self._received = True
        self._handovers.tickets.arrived(self.decode)

    # the end

    def finished(self, ticket: Ticket, usage: Usage) -> Usage:
        # The cached tokens that a worker reports after a transfer do not describe its own cache.
        remote = ticket is self.decode and self._received
        return Usage(None, usage.completion_tokens) if remote else usage

    def settle(self, outcome: str) -> None:
        if not self._outcome:
            self._outcome = outcome
            if outcome == HANDED_OVER or not self.together:  # else the prefill may still have to be sent again
                self._members = {}
            if outcome in (PREFILL_FAILED, DECODE_FAILED):
                self._handovers.peers.forget(self.prefill.candidate)
            self._params = None
            self._handovers.heartbeat.leave()
            self._handovers.metrics.handovers.add(1.0, (outcome,))

    def end(self, now_s: float) -> None:
        """Give back the decode worker's reservation if it was not used, and settle."""
        self._leave_prefill(finish=True)
        self.settle(STOPPED)
        self._handovers.tickets.cancelled(self.decode, now_s)


class SidecarHandover(KvHandover):
    """A handover that the decode worker's sidecar runs. It gets the client's request and the prefill worker's name.

    The prefill counts as running until the answer begins. If it does not begin, the request runs on one worker.
    """

    steps: ClassVar[int] = 1
    __slots__ = ()

    @property
    def first(self) -> Ticket:
        return self.decode

    def leg(self, ticket: Ticket, now_s: float) -> PlannedLeg:
        return PlannedLeg("decode", False, self.limit_s(ticket, now_s))

    def worker_line(self, ticket: Ticket) -> bytes:
        return header_line(self.prefill.candidate.endpoint.endpoint) if self.depends_at(ticket) else b""

    def limit_s(self, ticket: Ticket, now_s: float) -> float:
        """Return the longest time until the first event: that of a prefill and of a transfer."""
        return PREFILL_S + HANDOVER_FIRST_EVENT_S if self.depends_at(ticket) else math.inf

    def outgoing(self, ticket: Ticket, now_s: float) -> bytes | None:
        self._sent_s = now_s
        return None

    def opened(self, ticket: Ticket, now_s: float) -> None:
        if self.depends_at(ticket):
            tickets = self._handovers.tickets
            tickets.first_token(self.prefill, now_s)
            tickets.finished(self.prefill, Usage(), now_s)
            self._receive()
            self._handovers.metrics.handover_steps.observe(now_s - self._sent_s, ("sidecar",))
            self.settle(HANDED_OVER)

    def settle(self, outcome: str) -> None:
        KvHandover.settle(self, outcome)
        self._handovers.tickets.cancelled(self.prefill, self._handovers.time())
