"""The view of one slot's cache, and the reservations on the slot."""

from __future__ import annotations

from collections.abc import Sequence

from policies.view import Residency, WorkerId
from router.residency.approximate import ApproximateView
from router.residency.event_feed import MODELLED, EventFeed
from router.residency.exact.blocks import BlockIndex
from router.residency.exact.difference import Difference
from router.residency.exact.exact import NULL_BLOCKS
from router.residency.in_flight import ResidencyReservation
from router.residency.prompt import Prompt
from router.residency.view import ViewState

DEFAULT_CAPACITY_TOKENS = 32_768
"""Cache size to assume if the worker reports none: the space that an 8B model leaves on a 24 GB GPU. That is a small
cache today.
"""

TEXT_TOLERANCE = 0.25
"""Share by which the prediction for a text prompt may exceed the report before it counts as wrong, because the length
of a text prompt is an estimate.
"""

_NO_EVENTS = (
    "the worker publishes no KV events; start vLLM with --kv-events-config "
    '\'{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", '
    '"replay_endpoint": "tcp://*:5558"}\' for an exact view'
)

SWITCHED_OFF = "KV events are switched off by residency.kv_events"


class ViewChanges:
    """The views of a residency map whose copied values are stale, and a count of changes of such values."""

    def __init__(self) -> None:
        self.count = 0
        self.stale: set[CacheView] = set()


class CacheView:
    """Facts and views of one worker.

    `event_feed` is the view made from KV events; None if the worker publishes none. `model` replaces it in three cases:
    the events say nothing (`EventFeed.informative` is false), they do not describe this worker's prompts (`blind`), or
    the prompt is known as text only. The model is created on first use. After a call of `mark_stale`, `refresh` copies
    into this object the values that a match reads.
    """

    def __init__(
        self,
        index: BlockIndex,
        worker: WorkerId,
        block_size: int,
        capacity_blocks: int | None,
        events: bool,
        changes: ViewChanges,
    ) -> None:
        self._changes = changes
        self.worker = worker
        self.block_size = block_size
        self.capacity_blocks = capacity_blocks
        self.event_feed = EventFeed(index, block_size, capacity_blocks) if events else None
        self.model: ApproximateView | None = None
        self.reservations: dict[int, ResidencyReservation] = {}
        self.self_test: tuple[Residency, str] = (Residency.UNKNOWN, "")
        self.blind = False
        self.switched_off = False
        self._refresh()

    def mark_stale(self) -> None:
        self.stale = True
        self._changes.stale.add(self)

    def refresh(self) -> None:
        before = self._matched_by()
        self._refresh()
        self._changes.stale.discard(self)
        if self._matched_by() != before:
            self._changes.count += 1

    def _matched_by(self) -> tuple[object, ...]:
        return self.bit, self.block_size, self.closed, self.modelled, self.residency, self.slower_tiers

    def _refresh(self) -> None:
        self.stale = False
        plain = self.self_test[0] is Residency.UNKNOWN and not self.blind
        sound = plain and self.event_feed is not None and self.event_feed.sound
        self.residency = Residency.EXACT if sound else self.trust()[0]
        self.bit, self.closed, self.slower_tiers, self.modelled = 0, True, False, True
        if self.event_feed is not None:
            self.modelled = self.blind or not self.event_feed.informative
            view = self.event_feed.view
            self.block_size = view.block_size
            self.capacity_blocks = view.capacity_blocks
            self.bit = view.block_copies.bit
            self.closed = self.event_feed.closed
            self.slower_tiers = view.has_slower_tiers

    def configure(
        self, index: BlockIndex, block_size: int | None, capacity_blocks: int | None, events: bool | None
    ) -> None:
        """Apply changed facts; None leaves a value as it is."""
        if events is False and self.event_feed is not None:
            self.event_feed.view.block_copies.give_up()
            self.event_feed = None
        if events and self.event_feed is None:
            blocks = capacity_blocks or self.capacity_blocks
            self.event_feed = EventFeed(index, block_size or self.block_size, blocks)
            self.blind = self.switched_off = False
        elif self.event_feed is not None:
            self.event_feed.view.configure(block_size, capacity_blocks)
        else:
            self.block_size = block_size or self.block_size
            self.capacity_blocks = capacity_blocks or self.capacity_blocks
        self.refresh()
        self._refit_model()

    def _refit_model(self) -> None:
        if self.model is None:
            return
        if self.model.block_size != self.block_size:
            self.model = None
            for reservation in self.reservations.values():
                reservation.reserved_blocks = 0
        else:
            self.model.resize(self._model_blocks())

    def _model_blocks(self) -> int:
        if self.capacity_blocks:
            return max(1, self.capacity_blocks - NULL_BLOCKS)
        return max(1, DEFAULT_CAPACITY_TOKENS // self.block_size)

    @property
    def model_bytes(self) -> int:
        return 0 if self.model is None else self.model.size_bytes

    def shrink(self, size_bytes: int) -> None:
        if self.model is not None:
            self.model.shrink(size_bytes)

    def is_modelled(self, prompt: Prompt) -> bool:
        """Return whether `prompt` is looked up in the model instead of the events' view."""
        return self.event_feed is None or self.blind or not self.event_feed.informative or not prompt.exact

    def _teaches_model(self, prompt: Prompt) -> bool:
        """Return whether the model learns from `prompt`, because it answers for the prompt now or may have to soon."""
        return self.is_modelled(prompt) or (self.event_feed is not None and self.event_feed.unproved)

    def modelled_length(self, prompt: Prompt) -> int:
        return self.modelled_blocks(*usable_chain(prompt, self.block_size), prompt.tokens)

    def modelled_blocks(self, chain: Sequence[int], usable: int, tokens: int) -> int:
        """Return how many blocks of a prompt the model holds, from the result of `usable_chain`."""
        return 0 if self.model is None else self.model.match(chain, usable, tokens)

    def needed_model(self) -> ApproximateView:
        if self.model is None or self.model.block_size != self.block_size:
            self.model = ApproximateView(self.block_size, self._model_blocks())
        return self.model

    def reserve(self, reservation: ResidencyReservation) -> None:
        """Reserve cache space in the model for a placed request, at once.

        vLLM allocates blocks when it schedules a request, first come, first served. When a later request looks for its
        prefix, this request has already evicted the blocks whose space it needed.
        """
        if self._teaches_model(reservation.prompt):
            model, prompt = self.needed_model(), reservation.prompt
            chain = prompt.chain(self.block_size)
            reservation.reserved_blocks = model.running(chain, prompt.tokens + model.half_answer_tokens)

    def first_token(self, ticket_id: int) -> None:
        reservation = self.reservations.get(ticket_id)
        if reservation is not None:
            reservation.running = True

    def finished(
        self, prompt: Prompt, generated_tokens: int, cached_tokens: int | None, ticket_id: int | None
    ) -> Difference | None:
        """Compare a served request with its report, correct the views and store its blocks in the model.

        Return why the report differs from the prediction; None if it does not differ or the reason cannot be known.
        """
        reservation = None if ticket_id is None else self.reservations.get(ticket_id)
        if reservation is not None:
            if reservation.done:
                return None
            reservation.done = True
        reported_tokens = None if prompt.multiple else cached_tokens
        difference = None
        if self.event_feed is not None and prompt.exact:
            event_feed = self.event_feed
            event_feed.served()
            if reported_tokens is not None and event_feed.begun:
                block_size = event_feed.view.block_size
                if ticket_id is not None:
                    event_feed.found(ticket_id, reported_tokens)
                claim = None if ticket_id is None or reservation is None else reservation.claim(ticket_id, block_size)
                difference = event_feed.report(prompt.chain(block_size), reported_tokens, claim)
            self.mark_stale()
        if self._teaches_model(prompt):
            self._teach_model(prompt, generated_tokens, reported_tokens, reservation)
        elif reservation is not None:
            self._end_running(reservation)
        return _difference(reservation, reported_tokens, difference)

    def _teach_model(
        self, prompt: Prompt, generated_tokens: int, cached_tokens: int | None, reservation: ResidencyReservation | None
    ) -> None:
        model = self.needed_model()
        chain = prompt.chain(self.block_size)
        predicted = reservation.start if reservation is not None else self.modelled_length(prompt)
        hits = predicted
        if cached_tokens is not None:
            hits = cached_tokens // self.block_size
            model.found(*usable_chain(prompt, self.block_size), prompt.tokens, hits)
            if reservation is not None:
                self._correct(model, chain, hits, reservation)
        if reservation is not None:
            self._end_running(reservation)
        tokens, generated = prompt.tokens, generated_tokens
        if prompt.multiple:
            # Tokens after the first prompt's blocks belong to the other prompts, whose hashes are not known.
            tokens, generated = len(chain) * self.block_size, 0
        if reservation is None or not reservation.running:
            # No first token was recorded for the request, but it took its space, including the last, partial block.
            model.end_running(model.running(chain, tokens + generated))
        model.finished(chain, tokens, generated, hits)

    @staticmethod
    def _correct(model: ApproximateView, chain: Sequence[int], hits: int, reservation: ResidencyReservation) -> None:
        predicted = reservation.start
        tolerated = predicted if reservation.prompt.exact else predicted * (1 - TEXT_TOLERANCE) - 1
        # A hit beyond the prediction may come from requests just before this one, so it does not show the capacity.
        brought = (reservation.predicted_tokens or 0) // reservation.block_size
        if hits < tolerated or hits > max(predicted, brought):
            model.fit(predicted, hits)
        if hits < tolerated:
            model.correct(chain, hits, reservation.clock)

    def release(self, reservation: ResidencyReservation) -> None:
        """End a reservation. A request that ran and was cut off leaves its prompt in the cache."""
        if reservation.running and not reservation.done and self._teaches_model(reservation.prompt):
            self._end_running(reservation)
            chain = reservation.prompt.chain(self.block_size)
            self.needed_model().finished(chain, len(chain) * self.block_size, 0, reservation.start)
        self._end_running(reservation)

    def _end_running(self, reservation: ResidencyReservation) -> None:
        if self.model is not None:
            self.model.end_running(reservation.reserved_blocks)
        reservation.reserved_blocks = 0

    def trust(self) -> tuple[Residency, str]:
        verdict, tested = self.self_test
        if verdict is Residency.OFF:
            return verdict, tested
        if self.event_feed is None:
            why = SWITCHED_OFF if self.switched_off else _NO_EVENTS
            return Residency.APPROXIMATE, _joined(why, self._assumption(), tested)
        residency, reason = self.event_feed.trust()
        if self.blind and self.event_feed.informative:
            return Residency.APPROXIMATE, f"{tested}; {MODELLED}"
        if residency is Residency.EXACT and verdict is Residency.APPROXIMATE:
            return verdict, tested
        return residency, _joined(reason, tested)

    def tested(self, verdict: Residency, reason: str, blind: bool) -> None:
        """Record a self-test. `blind`: the events did not describe the prompts of the test."""
        self.self_test = (verdict, reason)
        self.blind = blind and self.event_feed is not None and self.event_feed.heard
        if blind and self.event_feed is not None:
            self.event_feed.unheard()
        self.mark_stale()

    def _assumption(self) -> str:
        if self.capacity_blocks is not None:
            return ""
        return f"its cache size is not known either: {DEFAULT_CAPACITY_TOKENS} tokens are assumed"

    def state(self) -> ViewState:
        residency, reason = self.trust()
        event_feed, model = self.event_feed, self.model
        self.refresh()
        if event_feed is None or self.modelled:
            blocks = 0 if model is None else model.blocks
            return ViewState(residency, reason, blocks, self.block_size, self.capacity_blocks)
        return ViewState(
            residency,
            reason,
            event_feed.view.block_copies.blocks,
            self.block_size,
            self.capacity_blocks,
            event_feed.sequence.next_seq,
            event_feed.last_event_ts_s,
        )

    def statistics(self) -> dict[str, object]:
        self.refresh()
        figures: dict[str, object] = {
            "worker": self.worker,
            "residency": str(self.residency),
            "reservations": len(self.reservations),
        }
        if self.event_feed is not None:
            figures |= self.event_feed.statistics()
        if self.model is not None:
            figures["model"] = self.model.statistics()
        return figures


def _difference(
    reservation: ResidencyReservation | None, reported: int | None, judged: Difference | None
) -> Difference | None:
    """Return the reason to report for one request. An approximate prediction needs no further explanation."""
    if reservation is None or reservation.predicted_tokens is None or reported in (None, reservation.predicted_tokens):
        return None
    return Difference.APPROXIMATE if judged is None or not reservation.exact else judged


def _joined(*reasons: str) -> str:
    """Join the non-empty reasons, each one once."""
    said: list[str] = []
    for reason in filter(None, reasons):
        if not any(reason in before for before in said):
            said.append(reason)
    return "; ".join(said)


def usable_chain(prompt: Prompt, block_size: int) -> tuple[Sequence[int], int]:
    """Return the prompt's blocks and how many a worker can reuse: it always computes the last token again."""
    chain = prompt.chain(block_size)
    return chain, max(0, min(len(chain), (prompt.own_tokens - 1) // block_size))
