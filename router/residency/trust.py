"""How far what is known of one worker's cache can be trusted, in words that an operator can act on."""

from __future__ import annotations

from policies.view import Residency
from router.residency.cache_model import DEFAULT_CAPACITY_TOKENS
from router.residency.event_feed import MODELLED, EventFeed

_NO_EVENTS = (
    "the worker publishes no KV events; start vLLM with --kv-events-config "
    '\'{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", '
    '"replay_endpoint": "tcp://*:5558"}\' for an exact cache'
)
SWITCHED_OFF = "KV events are switched off by residency.kv_events"


class Trust:
    """The verdict of the worker's self-test, and what it means beside the events.

    `blind`: the events do not describe the prompts of the test. `switched_off`: the settings ask for no KV events.
    """

    def __init__(self) -> None:
        self.verdict = Residency.UNKNOWN
        self.blind = False
        self.switched_off = False
        self._reason = ""

    def tested(self, verdict: Residency, reason: str) -> None:
        self.verdict, self._reason = verdict, reason

    def judged(self, feed: EventFeed | None, capacity_blocks: int | None) -> tuple[Residency, str]:
        verdict, tested = self.verdict, self._reason
        if verdict is Residency.OFF:
            return verdict, tested
        if feed is None:
            why = SWITCHED_OFF if self.switched_off else _NO_EVENTS
            assumed = f"its cache size is not known either: {DEFAULT_CAPACITY_TOKENS} tokens are assumed"
            return Residency.APPROXIMATE, _joined(why, assumed if capacity_blocks is None else "", tested)
        residency, reason = feed.trust()
        if self.blind and feed.informative:
            return Residency.APPROXIMATE, f"{tested}; {MODELLED}"
        if residency is Residency.EXACT and verdict is Residency.APPROXIMATE:
            return verdict, tested
        return residency, _joined(reason, tested)


def _joined(*reasons: str) -> str:
    """Join the non-empty reasons, each one once."""
    said: list[str] = []
    for reason in filter(None, reasons):
        if not any(reason in before for before in said):
            said.append(reason)
    return "; ".join(said)
