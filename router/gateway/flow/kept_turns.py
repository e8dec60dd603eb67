"""The turns of conversations whose blocks decode workers keep for the prefill of the next turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from backends.foreign_json import read_json
from backends.vllm.handover.answer_apis import Members
from backends.vllm.handover.kept_turn import given_ids, kept_tokens
from backends.vllm.handover.nixl_pull import with_reachable_host
from backends.vllm.handover.parameters import HandoverError, TransferParams
from router.config.model import HandoverConfig
from router.gateway.flow.prefill_peers import PrefillPeers
from router.gateway.metrics_protocol import GatewayMetrics
from router.gateway.rewrites.answer_ids import AnswerIds
from router.placement.endpoints import Candidate, FleetEndpoint
from router.placement.fleet import Fleet
from router.placement.handover import PlannedHandover
from router.placement.kept_turns import GivenPrompt, KeptTurn, readable
from router.placement.lifecycle_events import Request, Usage
from router.residency.chain import TOKEN_BYTES
from router.residency.prompt import PromptSource
from router.tokenization.memo import packed_ids

KEPT: Final = "kept"
NOT_KEPT: Final = "not_kept"
UNREAD: Final = "unread"
PUSHED_OUT: Final = "pushed_out"
NONE: Final = "none"
DEPARTED: Final = "departed"
EXPIRED: Final = "expired"
WORKER_LOST: Final = "worker_lost"
UNLIKE: Final = "unlike"
DEARER: Final = "dearer"
READ: Final = "read"
READ_FAILED: Final = "read_failed"
_MAX_TURNS: Final = 1_024
_MAX_BYTES: Final = 67_108_864
"""Of token ids and transfer parameters together: 1,024 turns of 12,000 tokens."""


def gives_ids(request: Request) -> bool:
    """Return whether the prompt of a request is token ids, as far as its intake knows."""
    return request.prompt is not None and request.prompt.source is PromptSource.IDS


def given_prompt(model: str | None, members: Members) -> GivenPrompt | None:
    """Return the prompt of a request if it is given as token ids; None otherwise."""
    ids = given_ids(members)
    return None if ids is None else GivenPrompt(model, bytes(members.get("cache_salt", b"null")), packed_ids(ids))


class KeptTurns:
    """Remembers what decode workers keep, until a prefill gets it, or newer turns need the room.

    Lookups compare token ids with each turn, its end first: a prompt of another conversation differs there.
    """

    __slots__ = ("_bytes", "_fleet", "_lease_s", "_metrics", "_peers", "_time", "_turns")

    def __init__(
        self,
        config: HandoverConfig,
        fleet: Fleet,
        peers: PrefillPeers,
        metrics: GatewayMetrics,
        time: Callable[[], float],
    ) -> None:
        self._lease_s = (config.turn_lease_s or 0.0) - config.lease_margin_s
        self._fleet = fleet
        self._peers = peers
        self._metrics = metrics
        self._time = time
        self._turns: deque[KeptTurn] = deque()
        """Oldest first."""
        self._bytes = 0
        fleet.on_loss.append(self._lost)
        fleet.on_process.append(self._process_seen)

    def close(self) -> None:
        if self._lost in self._fleet.on_loss:
            self._fleet.on_loss.remove(self._lost)
            self._fleet.on_process.remove(self._process_seen)

    @property
    def count(self) -> int:
        """Turns that are kept, or whose time has ended."""
        return len(self._turns)

    def statistics(self) -> dict[str, int]:
        """Return how many turns can be read now, and the bytes of token ids and transfer parameters of all."""
        return {"turns": len(self._readable()), "bytes": self._bytes}

    def by_owner(self) -> dict[str, dict[str, int]]:
        """Return the turns that can be read now, and their tokens, by candidate."""
        found: dict[str, dict[str, int]] = {}
        for turn in self._readable():
            owner = found.setdefault(turn.owner.id, {"kept_turns": 0, "kept_turn_tokens": 0})
            owner["kept_turns"] += 1
            owner["kept_turn_tokens"] += turn.prompt.tokens
        return found

    def _readable(self) -> list[KeptTurn]:
        now_s = self._time()
        self._drop_ended(now_s)
        return [turn for turn in self._turns if turn.there and now_s < turn.end_s]

    def _drop_ended(self, now_s: float) -> None:
        """Drop the turns whose time has ended. They stay as long again, to tell a prompt that comes late why."""
        ended_s = now_s - self._lease_s
        for turn in [turn for turn in self._turns if turn.end_s <= ended_s]:
            self._drop(turn, UNREAD)

    def keep(self, prompt: GivenPrompt, answer: AnswerIds, usage: Usage, owner: Candidate, since_s: float) -> None:
        """Remember a turn whose answer has ended, if its ids are known. The lease counts from `since_s`."""
        ids = prompt.ids + packed_ids(answer.ids)
        tokens = len(ids) // TOKEN_BYTES
        try:
            if usage.completion_tokens != len(answer.ids):
                raise HandoverError("the answer does not report all of its token ids")
            kept = kept_tokens(read_json(answer.params or b"null"), tokens, owner.block_tokens)
        except (HandoverError, msgspec.DecodeError):
            self._metrics.turn_kept(NOT_KEPT)
            return
        whole = prompt._replace(ids=ids[: kept * TOKEN_BYTES])
        end_s = since_s + self._lease_s
        turn = KeptTurn(whole, min(prompt.tokens, kept), answer.params, owner, end_s)
        self._drop_ended(self._time())
        self._turns.append(turn)
        self._bytes += turn.size_bytes
        self._metrics.turn_kept(KEPT)
        while len(self._turns) > _MAX_TURNS or (self._bytes > _MAX_BYTES and self._turns):
            oldest = self._turns[0]
            self._drop(oldest, PUSHED_OUT if self._time() < oldest.end_s else UNREAD)

    def extended_by(self, prompt: GivenPrompt | None) -> list[KeptTurn]:
        """Return the turns that the prompt extends, the longest and the latest ones first."""
        found = [] if prompt is None else [turn for turn in self._turns if prompt.extends(turn.prompt)]
        found.sort(key=lambda turn: (len(turn.prompt.ids), turn.end_s), reverse=True)
        return found

    def take(self, planned: PlannedHandover, prompt: GivenPrompt | None, found: list[KeptTurn], now_s: float) -> str:
        """Forget the turn that the planned prefill reads: it is read once. Return the worker that keeps it.

        If it reads none of those `found`, say why not the longest, and forget that if its worker or its time is gone.
        """
        if planned.turn is not None:
            self._drop(planned.turn)
            return str(planned.turn.owner.id)
        if not found:
            return DEPARTED if prompt is not None and self._departs(prompt) else NONE
        turn, reader = found[0], planned.prefill.selection.candidates[planned.cost.prefill]
        if not turn.there:
            self._drop(turn)
            return WORKER_LOST
        if not readable((turn,), (reader,), turn.prompt.model).all():
            return UNLIKE
        fleet, place = planned.prefill.fleet, planned.cost.prefill
        if now_s + float(fleet.queue_wait_s[place] + fleet.prefill_s[place]) < turn.end_s:
            return DEARER
        self._drop(turn)
        return EXPIRED

    def params_for(self, turn: KeptTurn, reader: Candidate) -> TransferParams:
        """Return the parameters of a prefill on `reader` that reads the turn first."""
        params: TransferParams = read_json(turn.params)
        return with_reachable_host(params, self._peers.of(turn.owner), self._peers.of(reader))

    def _departs(self, prompt: GivenPrompt) -> bool:
        """Return whether the prompt continues the request of a turn with other tokens than its answer's."""
        return any(prompt.continues(turn) for turn in self._turns)

    def _drop(self, turn: KeptTurn, outcome: str = "") -> None:
        self._turns.remove(turn)
        self._bytes -= turn.size_bytes
        if outcome:
            self._metrics.turn_kept(outcome)

    def _lost(self, endpoint: FleetEndpoint) -> None:
        for turn in self._turns:
            turn.lost = turn.lost or turn.owner.endpoint is endpoint

    def _process_seen(self, endpoint: FleetEndpoint, new: bool, asked_s: float) -> None:
        if new:
            self._lost(endpoint)
