"""The pool of a scripted picker: which endpoints are eligible, and what it has counted."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from hashlib import sha256

from router.picker.conformance.hook import ALL, HookAction
from tests.router.picker.conformance.manners import Manners

ENDPOINTS = ("10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "[fd00::1]:8000")
PREFILL = ("10.0.0.9:8000",)
ELSEWHERE = "198.51.100.5:8000"
SHEDDABLE, URGENT = "batch", "interactive"
PRIORITIES = {SHEDDABLE: -1, URGENT: 1}
ADAPTERS = {"adapter-a": ENDPOINTS[2]}
REWRITES = {"alias": {"model-a": 3, "model-b": 1}}


class ScriptedPool:
    def __init__(self, manners: Manners) -> None:
        self.manners = manners
        self.gone: dict[str, str] = {}
        """Why an endpoint is not eligible, by endpoint."""
        self.saturated = False
        self.synced = asyncio.Event()
        self.synced.set()
        self.changed = asyncio.Condition()
        self.draining = False
        self.ledger: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.usage: Counter[str] = Counter()
        self.known_prompts: set[bytes] = set()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._turn = 0
        self._random = random.Random(7)

    async def run(self, action: HookAction, endpoint: str) -> str:
        """Be the hook."""
        if action in (HookAction.LEDGER, HookAction.ERRORS, HookAction.USAGE):
            counted = {"ledger": self.ledger, "errors": self.errors, "usage": self.usage}[action.value]
            return str(counted.total() if endpoint == ALL else counted[endpoint])
        self._change(action, endpoint)
        async with self.changed:
            self.changed.notify_all()
        return ""

    def _change(self, action: HookAction, endpoint: str) -> None:
        manners = self.manners
        seen = {
            HookAction.NOT_READY: manners.sees_not_ready,
            HookAction.TERMINATE: manners.sees_terminating,
            HookAction.REMOVE: manners.sees_removed,
            HookAction.NARROW: manners.sees_active_ports,
        }
        back = {
            HookAction.READY: manners.sees_ready_again,
            HookAction.ADD: manners.sees_added,
            HookAction.WIDEN: True,
        }
        if seen.get(action):
            self.gone[endpoint] = action.value
        elif back.get(action):
            self.gone.pop(endpoint, None)
        elif action is HookAction.SATURATE:
            self.saturated = True
        elif action is HookAction.RELEASE:
            self.saturated = False
            self._releasing = asyncio.ensure_future(self._release())
        elif action is HookAction.UNSYNC:
            self.synced.clear()
        elif action is HookAction.SYNC:
            self.synced.set()
        elif action is HookAction.DRAIN and manners.drains:
            self.draining = True

    async def wait_for_turn(self, priority: int) -> None:
        """Wait until the pool is not saturated."""
        self._turn += 1
        turn = (0 if self.manners.fifo else -priority, self._turn, asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        try:
            await turn[2]
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)

    async def _release(self) -> None:
        for _, _, future in sorted(self._waiting, key=lambda turn: turn[:2]):
            if not future.done():
                future.set_result(None)
            await asyncio.sleep(0.03)

    def eligible(self, subset: list[str] | str | None, bodied: bool) -> list[str]:
        manners = self.manners
        ready = [endpoint for endpoint in ENDPOINTS if endpoint not in self.gone]
        if subset is None and manners.absent_is_empty:
            return []
        if subset is None or not manners.reads_subset or not (bodied or manners.subset_without_body):
            return ready
        members = self._members(subset)
        if not members and manners.empty_is_pool:
            return ready
        among = ENDPOINTS if manners.subset_beats_readiness else ready
        found = [endpoint for endpoint in among if self._named(endpoint, members)]
        return found or (ready if manners.unknown_is_pool else [])

    def _members(self, subset: list[str] | str) -> list[str]:
        if isinstance(subset, list):
            return subset
        parts = subset.split(",") if self.manners.reads_text_subset else [subset]
        return [part.strip() if self.manners.trims else part for part in parts]

    def _named(self, endpoint: str, members: list[str]) -> bool:
        address = endpoint.rpartition(":")[0]
        return endpoint in members or (self.manners.reads_bare_addresses and address in members)

    def choose(self, eligible: list[str], body: bytes | None) -> list[str]:
        """Return the picks, the first choice first, with a fallback where there is one."""
        manners = self.manners
        if manners.outside_pool:
            return [ELSEWHERE]
        usable = [one for one in eligible if one != ENDPOINTS[1]] or eligible if manners.one_port else eligible
        first = 0 if manners.one_endpoint else self._place(body) % len(usable)
        among = usable if manners.subset_of_fallbacks else list(ENDPOINTS)
        rest = [endpoint for endpoint in among if endpoint != usable[first]]
        picks = [usable[first], *rest[-1:]]
        return [picks[0], picks[0]] if manners.repeats_in_list else picks

    def _place(self, body: bytes | None) -> int:
        if body is None or not self.manners.sticky:
            return self._random.randrange(1_000)
        return int.from_bytes(sha256(body).digest()[:4])

    def target_of(self, model: str) -> str | None:
        """Return the model that a name stands for, or None."""
        weights = REWRITES.get(model)
        if weights is None:
            return None
        even = self._random.choice(list(weights))
        return self._random.choices(list(weights), list(weights.values()))[0] if self.manners.follows_weights else even
