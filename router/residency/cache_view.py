"""One slot: a worker's view, or views, and the bookings on it."""

from __future__ import annotations

from collections.abc import Sequence

from policies.view import Residency, WorkerId
from router.residency.approximate import ApproximateView
from router.residency.blocks import BlockIndex
from router.residency.difference import Difference
from router.residency.event_view import MODELLED, EventView
from router.residency.exact import NULL_BLOCKS
from router.residency.in_flight import ResidencyReservation
from router.residency.prompt import Prompt
from router.residency.view import ViewState

DEFAULT_CAPACITY_TOKENS = 32_768
"""Cache assumed where the worker does not say: room beside an 8B model on a 24 GB GPU, about the least in use."""

TEXT_TOLERANCE = 0.25
"""Share by which a text prompt's prediction may exceed the report before it counts as wrong: its length is a guess."""

_NO_EVENTS = (
    "the worker publishes no KV events; start vLLM with --kv-events-config "
    '\'{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", '
    '"replay_endpoint": "tcp://*:5558"}\' for an exact view'
)

SWITCHED_OFF = "KV events are switched off by residency.kv_events"


class CacheView:
    """Facts and views of one worker.

    `published` is the view made from events, None where there are none. `model` stands in for it while it says
    nothing (`EventView.tells`), or not of this worker's prompts (`blind`), and serves prompts that are known as
    text only; it is made when first needed. What a match reads is taken over from the views by `refresh`, when `stale`.
    """

    __slots__ = (
        "bit",
        "blind",
        "block_size",
        "capacity_blocks",
        "closed",
        "model",
        "modelled",
        "published",
        "reservations",
        "residency",
        "self_test",
        "slower_tiers",
        "stale",
        "switched_off",
        "worker",
    )

    def __init__(
        self, index: BlockIndex, worker: WorkerId, block_size: int, capacity_blocks: int | None, events: bool
    ) -> None:
        self.worker = worker
        self.block_size = block_size
        self.capacity_blocks = capacity_blocks
        self.published = EventView(index, block_size, capacity_blocks) if events else None
        self.model: ApproximateView | None = None
        self.reservations: dict[int, ResidencyReservation] = {}
        self.self_test: tuple[Residency, str] = (Residency.UNKNOWN, "")
        self.blind = False
        self.switched_off = False
        self.refresh()

    def refresh(self) -> None:
        """Take over what changed in the views."""
        self.stale = False
        plain = self.self_test[0] is Residency.UNKNOWN and not self.blind
        sound = plain and self.published is not None and self.published.sound
        self.residency = Residency.EXACT if sound else self.trust()[0]
        self.bit, self.closed, self.slower_tiers, self.modelled = 0, True, False, True
        if self.published is not None:
            self.modelled = self.blind or not self.published.tells
            view = self.published.view
            self.block_size = view.block_size
            self.capacity_blocks = view.capacity_blocks
            self.bit = view.block_copies.bit
            self.closed = self.published.closed
            self.slower_tiers = view.has_slower_tiers

    def configure(
        self, index: BlockIndex, block_size: int | None, capacity_blocks: int | None, events: bool | None
    ) -> None:
        """Facts changed; None leaves one as it is."""
        if events is False and self.published is not None:
            self.published.view.block_copies.give_up()
            self.published = None
        if events and self.published is None:
            blocks = capacity_blocks or self.capacity_blocks
            self.published = EventView(index, block_size or self.block_size, blocks)
            self.blind = self.switched_off = False
        elif self.published is not None:
            self.published.view.configure(block_size, capacity_blocks)
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
        """Rough memory of the model."""
        return 0 if self.model is None else self.model.size_bytes

    def shrink(self, size_bytes: int) -> None:
        """Make the model no larger than this."""
        if self.model is not None:
            self.model.shrink(size_bytes)

    def is_modelled(self, prompt: Prompt) -> bool:
        """Whether `prompt` is looked up in the model, not in what events told."""
        return self.published is None or self.blind or not self.published.tells or not prompt.exact

    def _teaches_model(self, prompt: Prompt) -> bool:
        """Whether the model looks on: it is in use for such prompts, or may soon have to take over."""
        return self.is_modelled(prompt) or (self.published is not None and self.published.unproved)

    def modelled_length(self, prompt: Prompt) -> int:
        """Blocks of `prompt` that the model has."""
        return self.modelled_blocks(*usable_chain(prompt, self.block_size), prompt.tokens)

    def modelled_blocks(self, chain: Sequence[int], usable: int, tokens: int) -> int:
        """The same, of a prompt whose `usable_chain` is at hand."""
        return 0 if self.model is None else self.model.match(chain, usable, tokens)

    def needed_model(self) -> ApproximateView:
        """The model, made if there was none."""
        if self.model is None or self.model.block_size != self.block_size:
            self.model = ApproximateView(self.block_size, self._model_blocks())
        return self.model

    def reserve(self, reservation: ResidencyReservation) -> None:
        """A request was booked: in the model it takes its room at once.

        vLLM gives it that when it is scheduled, so first come, first served: by the time a later request looks for its
        prefix, this one has evicted what it had to.
        """
        if self._teaches_model(reservation.prompt):
            model, prompt = self.needed_model(), reservation.prompt
            chain = prompt.chain(self.block_size)
            reservation.reserved_blocks = model.running(chain, prompt.tokens + model.half_answer_tokens)

    def first_token(self, ticket_id: int) -> None:
        """A booked request runs."""
        reservation = self.reservations.get(ticket_id)
        if reservation is not None:
            reservation.running = True

    def finished(
        self, prompt: Prompt, generated_tokens: int, cached_tokens: int | None, ticket_id: int | None
    ) -> Difference | None:
        """A request was served: compare with what was reported, correct, then put it into the model.

        Returns why more or less was reported than had been predicted; None if neither, or if that cannot be said.
        """
        reservation = None if ticket_id is None else self.reservations.get(ticket_id)
        if reservation is not None:
            if reservation.done:
                return None
            reservation.done = True
        reported_tokens = None if prompt.multiple else cached_tokens
        difference = None
        if self.published is not None and prompt.exact:
            published = self.published
            published.served()
            if reported_tokens is not None and published.begun:
                block_size = published.view.block_size
                if ticket_id is not None:
                    published.found(ticket_id, reported_tokens)
                claim = None if ticket_id is None or reservation is None else reservation.claim(ticket_id, block_size)
                difference = published.report(prompt.chain(block_size), reported_tokens, claim)
            self.stale = True
        if self._teaches_model(prompt):
            self._tell_model(prompt, generated_tokens, reported_tokens, reservation)
        elif reservation is not None:
            self._end_running(reservation)
        return _difference(reservation, reported_tokens, difference)

    def _tell_model(
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
            # Tokens behind the first prompt's blocks belong to the others, whose hashes nobody has.
            tokens, generated = len(chain) * self.block_size, 0
        if reservation is None or not reservation.running:
            # Nobody saw it run, but it took its room all the same, the last block not yet full included.
            model.end_running(model.running(chain, tokens + generated))
        model.finished(chain, tokens, generated, hits)

    @staticmethod
    def _correct(model: ApproximateView, chain: Sequence[int], hits: int, reservation: ResidencyReservation) -> None:
        predicted = reservation.start
        tolerated = predicted if reservation.prompt.exact else predicted * (1 - TEXT_TOLERANCE) - 1
        # More than predicted may be what requests before it have just brought: that says nothing of the room.
        brought = (reservation.predicted_tokens or 0) // reservation.block_size
        if hits < tolerated or hits > max(predicted, brought):
            model.fit(predicted, hits)
        if hits < tolerated:
            model.correct(chain, hits, reservation.clock)

    def release(self, reservation: ResidencyReservation) -> None:
        """A booking is over; a request that ran and was cut off leaves its prompt in the cache."""
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
        """How far the slot's view can be trusted, and why."""
        verdict, tested = self.self_test
        if verdict is Residency.OFF:
            return verdict, tested
        if self.published is None:
            why = SWITCHED_OFF if self.switched_off else _NO_EVENTS
            return Residency.APPROXIMATE, _joined(why, self._assumption(), tested)
        residency, reason = self.published.trust()
        if self.blind and self.published.tells:
            return Residency.APPROXIMATE, f"{tested}; {MODELLED}"
        if residency is Residency.EXACT and verdict is Residency.APPROXIMATE:
            return verdict, tested
        return residency, _joined(reason, tested)

    def tested(self, verdict: Residency, reason: str, blind: bool) -> None:
        """A self-test was made; `blind`: what events told was no use in it."""
        self.self_test = (verdict, reason)
        self.blind = blind and self.published is not None and self.published.heard
        if blind and self.published is not None:
            self.published.unheard()
        self.stale = True

    def _assumption(self) -> str:
        if self.capacity_blocks is not None:
            return ""
        return f"its cache size is not known either: {DEFAULT_CAPACITY_TOKENS} tokens are assumed"

    def state(self) -> ViewState:
        """The view in words and figures."""
        residency, reason = self.trust()
        published, model = self.published, self.model
        self.refresh()
        if published is None or self.modelled:
            blocks = 0 if model is None else model.blocks
            return ViewState(residency, reason, blocks, self.block_size, self.capacity_blocks)
        return ViewState(
            residency,
            reason,
            published.view.block_copies.blocks,
            self.block_size,
            self.capacity_blocks,
            published.sequence.next_seq,
            published.last_event_ts_s,
        )

    def statistics(self) -> dict[str, object]:
        """Figures of the views."""
        self.refresh()
        figures: dict[str, object] = {
            "worker": self.worker,
            "residency": str(self.residency),
            "reservations": len(self.reservations),
        }
        if self.published is not None:
            figures |= self.published.statistics()
        if self.model is not None:
            figures["model"] = self.model.statistics()
        return figures


def _difference(
    reservation: ResidencyReservation | None, reported: int | None, judged: Difference | None
) -> Difference | None:
    """What is said of one request: a prediction that was no exact one needs no explanation."""
    if reservation is None or reservation.predicted_tokens is None or reported in (None, reservation.predicted_tokens):
        return None
    return Difference.APPROXIMATE if judged is None or not reservation.exact else judged


def _joined(*reasons: str) -> str:
    """Those that say something, each once."""
    said: list[str] = []
    for reason in filter(None, reasons):
        if not any(reason in before for before in said):
            said.append(reason)
    return "; ".join(said)


def usable_chain(prompt: Prompt, block_size: int) -> tuple[Sequence[int], int]:
    """The prompt's blocks, and how many a worker can use: the last token is always computed again."""
    chain = prompt.chain(block_size)
    return chain, max(0, min(len(chain), (prompt.own_tokens - 1) // block_size))
