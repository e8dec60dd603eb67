"""Learn which blocks a cache held before its events could be followed.

vLLM 0.26 and later announces the cached blocks that a request reuses, from the prompt's first block on, if the request
asks for it (``vllm_xargs: {"kv_cache_report_mode": "full"}``). The worker makes no copy and resets no cache. A view
that missed events is completed by the normal traffic in this way.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

ASKED_KEPT = 256
"""First blocks to remember, one per prompt that asked recently. They distinguish an announcement from a new prompt."""

WITNESSES = 256
"""Witness blocks watched for the first eviction. Any of them serves; the earliest are dropped first."""

ROUNDS = 2
"""Evictions of a witness to wait for. The witnesses of each round are computed after the previous one."""

BURST_S = 8.0
"""Seconds of the budget that may be spent at once."""

LEAST_BLOCKS = 2
"""Prompts of fewer full blocks do not ask. One announced block alone looks like a prompt of one block computed
again.
"""


class AnnouncementBudget:
    """Token bucket of blocks that may be announced again. One prompt may take more blocks than the bucket holds."""

    def __init__(self) -> None:
        self._blocks: float | None = None
        self._at_s = 0.0

    def has_any(self, now_s: float, blocks_per_s: float) -> bool:
        full = blocks_per_s * BURST_S
        left = full if self._blocks is None else self._blocks + (now_s - self._at_s) * blocks_per_s
        self._blocks = min(full, left)
        self._at_s = now_s
        return self._blocks > 0

    def take(self, blocks: int) -> None:
        """Spend `blocks`; a negative number gives blocks back."""
        if self._blocks is not None:
            self._blocks -= blocks


@dataclass(slots=True, eq=False)
class OpenRequest:
    """A running request that may use unknown blocks."""

    chain: Sequence[int]
    asked: bool = False
    seen: bool = False


class Relearning:
    """Decide which requests should ask for the blocks that a view missed, and when no block is missing any more.

    *Asking.* While `active`, a request asks if it may find unknown blocks: none of its prompt is known, or the last
    known block was itself learned from an announcement. After a block that was computed since the loss, no block can be
    unknown, because a cache holds no block without the block before it. Announcements repeat known blocks too, and vLLM
    repeats them in every step in which the request at the head of the queue waits for KV space. Each announced block is
    paid from an `AnnouncementBudget`, in advance by the length of the prompt.

    *The end.* vLLM evicts the block that was freed the longest ago. A block computed, and so freed, after the last use
    of every unknown block is evicted after all of them. Such blocks are the witnesses. They come from prompts that the
    worker did not have cached, so that there is one copy of each. When the first witness is evicted, the unknown blocks
    are gone, except blocks with an unknown second copy that were removed with the known one. A second round of
    witnesses outlasts these.

    The wait starts again after any possible use of an unknown block. One kind is a request through this gateway that
    did not ask and may have found more than was known (`closed`). The other is blocks stored after an unknown block,
    which show requests of other clients. One case stays unseen: another client's request that uses unknown blocks and
    fills no block. The view then knows too little, never too much, and reports show it.
    """

    def __init__(self) -> None:
        self.active = False
        self.over = False
        """Whether a witness was evicted, so that no block is missing any more."""
        self.asks = 0
        self.unanswered = 0
        """Requests that asked without an announcement from their first block on."""
        self.announced_blocks = 0
        """Blocks announced from the start of a prompt that asked. Blocks of new prompts look the same and count too."""
        self.learned_blocks = 0
        """Announced blocks that were not known, since `begin`."""
        self.relearned = 0
        """How often the view became complete again."""
        self._allowance = AnnouncementBudget()
        self._asked: OrderedDict[int, deque[int]] = OrderedDict()
        """First block -> blocks paid for by each request that asked and has no answer yet."""
        self._late: Counter[int] = Counter()
        """First block -> requests that asked and ended without an answer."""
        self._open: dict[int, OpenRequest] = {}
        """Running requests that may use unknown blocks, by ticket."""
        self._uncertain: set[int] = set()
        """Blocks learned from an announcement. They were not computed since the loss, so unknown blocks may follow
        them."""
        self._witnesses: set[int] = set()
        self._rounds = 0

    def begin(self) -> None:
        self.active = True
        self.learned_blocks = 0
        self._uncertain.clear()
        self.touched()

    def end(self) -> None:
        """Stop relearning: the cache was reset, the worker restarted, or all old blocks are gone."""
        self.active = False
        self._uncertain.clear()
        self.touched()

    # Requests.

    def may_find_more(self, chain: Sequence[int], known: int, usable: int) -> bool:
        return known < usable and (not known or chain[known - 1] in self._uncertain)

    def opened(self, ticket_id: int, chain: Sequence[int]) -> None:
        """Record a placed request that may use unknown blocks. `chain` has the blocks that it can use; it is empty if
        they are not known.
        """
        self._open[ticket_id] = OpenRequest(chain)

    def chain_of(self, ticket_id: int) -> Sequence[int]:
        request = self._open.get(ticket_id)
        return () if request is None else request.chain

    def ask(self, ticket_id: int, now_s: float, blocks_per_s: float) -> bool:
        """Return whether a request should ask: it is open, and the budget covers its announcement."""
        request = self._open.get(ticket_id)
        if request is None or request.asked:
            return request is not None
        chain = request.chain
        if len(chain) < LEAST_BLOCKS or not self._allowance.has_any(now_s, blocks_per_s):
            return False
        self._allowance.take(len(chain))
        self._asked.setdefault(chain[0], deque()).append(len(chain))
        self._asked.move_to_end(chain[0])
        if len(self._asked) > ASKED_KEPT:
            self._asked.popitem(last=False)
        self.asks += 1
        request.asked = True
        return True

    def seen(self, ticket_id: int) -> None:
        self._open[ticket_id].seen = True

    def closed(self, ticket_id: int) -> None:
        request = self._open.pop(ticket_id, None)
        if request is None:
            return
        if request.asked and self._asked.get(request.chain[0]):
            self._late[request.chain[0]] += 1  # The events of the request may arrive a little after its response.
        elif not request.asked and not request.seen:
            self.touched()

    # Events.

    def expects(self, first: int) -> bool:
        """Return whether blocks announced from `first` on may be the answer to a request that asked."""
        return first in self._asked

    def announced(self, hashes: Sequence[int], unknown: Sequence[int]) -> None:
        """Record blocks announced from the start of a prompt. `unknown` are the blocks among them that were not known
        before.
        """
        if self.active:
            self._uncertain.update(unknown)
        waiting = self._asked.get(hashes[0])
        if waiting is None:
            return
        self.announced_blocks += len(hashes)
        self.learned_blocks += len(unknown)
        self._allowance.take(len(hashes) - (waiting.popleft() if waiting else 0))
        if self._late:
            self._late -= Counter({hashes[0]: 1})

    def computed(self, run: Sequence[int]) -> None:
        """Record a run of blocks computed after a known block.

        The first block may exist twice: vLLM always computes the last block of a prompt again. The same holds for
        blocks filled one by one with generated tokens.
        """
        if len(self._witnesses) < WITNESSES:
            self._witnesses.update(run[1 : WITNESSES + 1])

    def evicted(self, block_hash: int) -> None:
        self._uncertain.discard(block_hash)
        if block_hash not in self._witnesses:
            return
        # An open request that did not ask, or a late announcement, may stand for a use of unknown blocks: wait again.
        if self._late or not all(request.asked for request in self._open.values()):
            self._give_up_late()
            self.touched()
            return
        self._witnesses.clear()
        self._rounds += 1
        self.over = self._rounds == ROUNDS

    def _give_up_late(self) -> None:
        for first, requests in self._late.items():
            self.unanswered += requests
            waiting = self._asked.get(first, deque())
            for _ in range(min(requests, len(waiting))):
                waiting.popleft()
        self._late.clear()

    def touched(self) -> None:
        """Record that unknown blocks may have been used until now."""
        self._witnesses.clear()
        self._rounds = 0
        self.over = False

    def statistics(self) -> dict[str, int]:
        """Return counters since the view was made; `relearned_blocks` counts since the last loss."""
        return {
            "relearn_asks": self.asks,
            "relearn_unanswered": self.unanswered,
            "reannounced_blocks": self.announced_blocks,
            "relearned_blocks": self.learned_blocks,
            "relearned": self.relearned,
        }
