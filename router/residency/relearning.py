"""Learning again what a cache held before its events could be followed.

vLLM 0.26 and later announces the cached blocks that a request reuses, from the prompt's first block on, if the request
asks for it (``vllm_xargs: {"kv_cache_report_mode": "full"}``); no copy is made, nothing is reset. So a view that missed
events is completed by the requests that pass anyway.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence

ASKED_KEPT = 256
"""First blocks of prompts that asked of late: by these an announcement is told from a prompt that was new."""

WITNESSES = 256
"""Blocks watched for the first to be evicted. Any of them will do; the earliest go first."""

ROUNDS = 2
"""Evictions of a witness to wait for, each one's witnesses being computed after the one before."""

BURST_S = 8.0
"""Seconds of the allowance that may be spent at once."""

LEAST_BLOCKS = 2
"""Prompts of fewer full blocks do not ask: one block announced alone looks like a prompt of one block computed anew."""


class AnnouncementBudget:
    """Blocks that may be announced again: a bucket that fills steadily and may be overdrawn by one prompt."""

    __slots__ = ("_at_s", "_blocks")

    def __init__(self) -> None:
        self._blocks: float | None = None
        self._at_s = 0.0

    def has_any(self, now_s: float, blocks_per_s: float) -> bool:
        """Whether there is something left at `now_s`."""
        full = blocks_per_s * BURST_S
        left = full if self._blocks is None else self._blocks + (now_s - self._at_s) * blocks_per_s
        self._blocks = min(full, left)
        self._at_s = now_s
        return self._blocks > 0

    def take(self, blocks: int) -> None:
        """Spend `blocks`; a negative number gives back."""
        if self._blocks is not None:
            self._blocks -= blocks


class OpenRequest:
    """A request that may use unknown blocks."""

    __slots__ = ("asked", "chain", "seen")

    def __init__(self, chain: Sequence[int]) -> None:
        self.chain = chain
        self.asked = False
        self.seen = False


class Relearning:
    """What one view missed, as far as it can be told: which requests should ask, and when nothing is missing any more.

    *Asking.* While `active`, a request asks if blocks it may find are unknown: none of its prompt is known, or the last
    one known was itself learned by an announcement. Behind a block that was computed since, nothing can be unknown,
    since a cache holds no block without the one before. Announcements repeat known blocks too, and vLLM repeats them
    on every step in which a request waits for room at the head of the queue; each block announced is paid for from
    an `AnnouncementBudget`, in advance by the length of the prompt.

    *The end.* vLLM evicts the block that was freed the longest ago. A block that was computed, and so freed, after the
    last use of any unknown one is evicted after all of those. Such blocks are the witnesses: those of a prompt that
    the worker looked for and did not have, so that there is one copy of each. When the first is evicted, no unknown
    block is left but those whose unknown second copy was taken for the only one when it went; a second round of
    witnesses outlasts these. Whatever may have used an unknown block starts the wait again: a request of ours that did
    not ask and may have found more than was known (`closed`), and blocks stored behind one that is unknown, which shows
    the requests of others. What stays unseen is another's request that uses unknown blocks and fills not one block:
    then the view knows too little, never too much, and reports show it.
    """

    __slots__ = (
        "_allowance",
        "_asked",
        "_late",
        "_open",
        "_rounds",
        "_uncertain",
        "_witnesses",
        "active",
        "announced_blocks",
        "asks",
        "learned_blocks",
        "over",
        "relearned",
        "unanswered",
    )

    def __init__(self) -> None:
        self.active = False
        self.over = False
        """A witness has been evicted: nothing is missing any more."""
        self.asks = 0
        self.unanswered = 0
        """Requests that asked, and nothing was announced from their first block on."""
        self.announced_blocks = 0
        """Blocks announced from the start of a prompt that asked. Those of new prompts look the same and count, too."""
        self.learned_blocks = 0
        """Of these, those that were not known, since `begin`."""
        self.relearned = 0
        """Times that a view became whole again."""
        self._allowance = AnnouncementBudget()
        self._asked: OrderedDict[int, deque[int]] = OrderedDict()
        """First block -> blocks paid for by each request that asked and has not been answered."""
        self._late: Counter[int] = Counter()
        """First block -> such requests that are over."""
        self._open: dict[int, OpenRequest] = {}
        """Requests under way that may use unknown blocks, by ticket."""
        self._uncertain: set[int] = set()
        """Blocks learned by an announcement: not computed since, so there may be more behind them."""
        self._witnesses: set[int] = set()
        self._rounds = 0

    def begin(self) -> None:
        """Events were missed, and what was known is given up."""
        self.active = True
        self.learned_blocks = 0
        self._uncertain.clear()
        self.touched()

    def end(self) -> None:
        """Nothing is missing: the cache was reset, or began anew, or has turned over."""
        self.active = False
        self._uncertain.clear()
        self.touched()

    # requests

    def may_find_more(self, chain: Sequence[int], told: int, usable: int) -> bool:
        """Whether the worker may have cached more of the prompt than the first `told` of its `usable` blocks."""
        return told < usable and (not told or chain[told - 1] in self._uncertain)

    def opened(self, ticket_id: int, chain: Sequence[int]) -> None:
        """A request that may use unknown blocks is on its way; `chain` is what it can use, empty where that is not
        known."""
        self._open[ticket_id] = OpenRequest(chain)

    def chain_of(self, ticket_id: int) -> Sequence[int]:
        """What an open request can use."""
        request = self._open.get(ticket_id)
        return () if request is None else request.chain

    def ask(self, ticket_id: int, now_s: float, blocks_per_s: float) -> bool:
        """Whether a request is to ask: it is open, and the allowance has room for its announcement."""
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
        """An open request found nothing that was not known."""
        self._open[ticket_id].seen = True

    def closed(self, ticket_id: int) -> None:
        """A request is over."""
        request = self._open.pop(ticket_id, None)
        if request is None:
            return
        if request.asked and self._asked.get(request.chain[0]):
            self._late[request.chain[0]] += 1  # events may be behind the answer, for a while
        elif not request.asked and not request.seen:
            self.touched()

    # events

    def expects(self, first: int) -> bool:
        """Whether blocks announced from `first` on may be the answer to a request that asked."""
        return first in self._asked

    def announced(self, hashes: Sequence[int], unknown: Sequence[int]) -> None:
        """Blocks were announced from the start of a prompt, `unknown` ones among them."""
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
        """A run of blocks was filled behind a known one. The first may be there twice: vLLM computes the last block of
        a prompt again, whether it has it or not; and so may blocks filled one by one, with what was generated."""
        if len(self._witnesses) < WITNESSES:
            self._witnesses.update(run[1 : WITNESSES + 1])

    def evicted(self, block_hash: int) -> None:
        """The last known copy of a block went."""
        self._uncertain.discard(block_hash)
        if block_hash not in self._witnesses:
            return
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
        """Unknown blocks may have been used until now."""
        self._witnesses.clear()
        self._rounds = 0
        self.over = False

    def statistics(self) -> dict[str, int]:
        """Counters since the view was made; `relearned_blocks` since the last loss."""
        return {
            "relearn_asks": self.asks,
            "relearn_unanswered": self.unanswered,
            "reannounced_blocks": self.announced_blocks,
            "relearned_blocks": self.learned_blocks,
            "relearned": self.relearned,
        }
