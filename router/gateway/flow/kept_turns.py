"""The turns of conversations whose blocks decode workers keep for the prefill of the next turn."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from struct import unpack
from typing import Final, NamedTuple

import msgspec

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
from router.placement.handover import kv_format
from router.placement.health import WorkerState
from router.placement.lifecycle_events import Usage
from router.residency.chain import TOKEN_BYTES
from router.tokenization.memo import packed_ids

KEPT: Final = "kept"
NOT_KEPT: Final = "not_kept"
NONE: Final = "none"
EXPIRED: Final = "expired"
WORKER_LOST: Final = "worker_lost"
UNLIKE: Final = "unlike"
READ: Final = "read"
READ_FAILED: Final = "read_failed"
_MAX_TURNS: Final = 1_024
_MAX_BYTES: Final = 67_108_864
"""Of token ids and transfer parameters together: 1,024 turns of 12,000 tokens."""
_END_BYTES: Final = 16 * TOKEN_BYTES
"""The end of a turn, which is compared first: turns that begin with one long text mostly differ there."""


class GivenPrompt(NamedTuple):
    """A prompt that a request gives as token ids, packed, with what else decides about its blocks."""

    model: str | None
    salt: bytes
    ids: bytes

    @property
    def tokens(self) -> int:
        """Its length."""
        return len(self.ids) // TOKEN_BYTES

    def has(self, ids: list[int] | None) -> bool:
        """Return whether these are its token ids."""
        return ids is not None and list(unpack(f"<{self.tokens}I", self.ids)) == ids


@dataclass(slots=True, eq=False)
class KeptTurn:
    """A turn whose blocks `owner` keeps. `prompt` are the tokens in these blocks, those of the answer included.

    `params` are the transfer parameters as JSON. From `end_s` on they are not used. `lost`: since then, the worker has
    restarted or was ejected.
    """

    prompt: GivenPrompt
    params: bytes
    owner: Candidate
    end_s: float
    lost: bool = False

    @property
    def size_bytes(self) -> int:
        """The memory that counts."""
        return len(self.prompt.ids) + len(self.params)


def given_prompt(model: str | None, members: Members) -> GivenPrompt | None:
    """Return the prompt of a request if it is given as token ids; None otherwise."""
    ids = given_ids(members)
    return None if ids is None else GivenPrompt(model, bytes(members.get("cache_salt", b"null")), packed_ids(ids))


class KeptTurns:
    """Remembers what decode workers keep, until a prefill gets it, or newer turns need the room.

    Lookups compare token ids with each turn, its end first: a prompt of another conversation differs there.
    """

    __slots__ = ("_bytes", "_config", "_fleet", "_metrics", "_peers", "_turns")

    def __init__(self, config: HandoverConfig, fleet: Fleet, peers: PrefillPeers, metrics: GatewayMetrics) -> None:
        self._config = config
        self._fleet = fleet
        self._peers = peers
        self._metrics = metrics
        self._turns: deque[KeptTurn] = deque()
        """Oldest first."""
        self._bytes = 0
        fleet.on_loss.append(self._lost)
        fleet.on_process.append(self._process_seen)

    def close(self) -> None:
        """Unsubscribe from the fleet."""
        if self._lost in self._fleet.on_loss:
            self._fleet.on_loss.remove(self._lost)
            self._fleet.on_process.remove(self._process_seen)

    def keep(self, prompt: GivenPrompt, answer: AnswerIds, usage: Usage, owner: Candidate, since_s: float) -> None:
        """Remember a turn whose answer has ended, if its ids are known. The lease counts from `since_s`."""
        ids = prompt.ids + packed_ids(answer.ids)
        tokens = len(ids) // TOKEN_BYTES
        try:
            if usage.completion_tokens != len(answer.ids):
                raise HandoverError("the answer does not report all of its token ids")
            kept = kept_tokens(msgspec.json.decode(answer.params or b"null"), tokens, owner.block_tokens)
        except (HandoverError, msgspec.DecodeError):
            self._metrics.turn_kept(NOT_KEPT)
            return
        whole = prompt._replace(ids=ids[: kept * TOKEN_BYTES])
        end_s = since_s + (self._config.turn_lease_s or 0.0) - self._config.lease_margin_s
        turn = KeptTurn(whole, answer.params, owner, end_s)
        self._turns.append(turn)
        self._bytes += turn.size_bytes
        while len(self._turns) > _MAX_TURNS or (self._bytes > _MAX_BYTES and self._turns):
            self._bytes -= self._turns.popleft().size_bytes
        self._metrics.turn_kept(KEPT)

    def take(self, prompt: GivenPrompt | None, reader: Candidate, prefilled_s: float) -> KeptTurn | str:
        """Return the longest turn that the prompt extends and the prefill worker `reader` can read, before it will have
        the prompt computed at `prefilled_s`. If there is none, say why not. A turn is returned once."""
        found = [] if prompt is None else [turn for turn in self._turns if _extends(prompt, turn.prompt)]
        if not found:
            return NONE
        found.sort(key=lambda turn: (len(turn.prompt.ids), turn.end_s), reverse=True)
        turn = next((turn for turn in found if not _problem(turn, reader, prefilled_s)), found[0])
        self._turns.remove(turn)
        self._bytes -= turn.size_bytes
        return _problem(turn, reader, prefilled_s) or turn

    def params_for(self, turn: KeptTurn, reader: Candidate) -> TransferParams:
        """Return the parameters of a prefill on `reader` that reads the turn first."""
        params: TransferParams = msgspec.json.decode(turn.params)
        return with_reachable_host(params, self._peers.of(turn.owner), self._peers.of(reader))

    def _lost(self, endpoint: FleetEndpoint) -> None:
        for turn in self._turns:
            turn.lost = turn.lost or turn.owner.endpoint is endpoint

    def _process_seen(self, endpoint: FleetEndpoint, new: bool, asked_s: float) -> None:
        if new:
            self._lost(endpoint)


def _extends(prompt: GivenPrompt, turn: GivenPrompt) -> bool:
    """Return whether `prompt` begins with the tokens of `turn` and has more of them."""
    size = len(turn.ids)
    return (
        len(prompt.ids) > size
        and prompt.ids.startswith(turn.ids[-_END_BYTES:], max(0, size - _END_BYTES))
        and (prompt.model, prompt.salt) == (turn.model, turn.salt)
        and prompt.ids.startswith(turn.ids)
    )


def _problem(turn: KeptTurn, reader: Candidate, prefilled_s: float) -> str:
    """Return why a prefill on `reader` cannot read the turn; empty if it can."""
    if prefilled_s >= turn.end_s:
        return EXPIRED
    endpoint, model = turn.owner.endpoint, turn.prompt.model
    if turn.lost or not turn.owner.live or endpoint.state is not WorkerState.READY:
        return WORKER_LOST
    alike = kv_format(reader, model).understands(kv_format(turn.owner, model))
    return UNLIKE if endpoint is reader.endpoint or not alike or _cannot_read(reader.endpoint) else ""


def _cannot_read(endpoint: FleetEndpoint) -> bool:
    """Return whether a worker reports that it reads no turns. In vLLM, a prefill that should do so waits for ever."""
    facts = endpoint.facts
    return facts is not None and facts.connector is not None and not facts.connector.bidirectional
