"""How far what is known of one worker's cache can be trusted, in words that an operator can act on."""

from __future__ import annotations

from policies.view import Residency
from router.residency.cache_model import DEFAULT_CAPACITY_TOKENS
from router.residency.event_feed import EventFeed

_NO_EVENTS = (
    "the worker publishes no KV events; start vLLM with --kv-events-config "
    '\'{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", '
    '"replay_endpoint": "tcp://*:5558"}\' for an exact cache'
)
_MODELLED = "its cache is modelled"
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
        residency, reason = _by_events(feed)
        if self.blind and feed.informative:
            return Residency.APPROXIMATE, f"{tested}; {_MODELLED}"
        if residency is Residency.EXACT and verdict is Residency.APPROXIMATE:
            return verdict, tested
        return residency, _joined(reason, tested)


def _by_events(feed: EventFeed) -> tuple[Residency, str]:
    at = f" at {feed.address}" if feed.address else ""
    if not feed.begun:
        return Residency.APPROXIMATE, f"KV events cannot be reached{at}; {_MODELLED}"
    if feed.connected and feed.sequence.replaying:
        return Residency.UNKNOWN, f"waiting for a replay of event batches from {feed.sequence.next_seq} on"
    if feed.connected and feed.silent:
        asked = f"is the topic {feed.topic!r} right?" if feed.topic else "is it this worker's publisher?"
        suspected = f"linked to {feed.address or 'its publisher'}, but no batch arrived: {asked}"
        return Residency.APPROXIMATE, f"{suspected}; {_MODELLED}"
    if feed.unproved:
        reason = "no event since the connection was made, and no replay to show what was missed"
        if not feed.connected:
            reason = f"no connection to the worker's KV event publisher{at}"
        return (Residency.UNKNOWN, reason) if feed.informative else (Residency.APPROXIMATE, f"{reason}; {_MODELLED}")
    doubts = [*feed.exact.doubts.values()]
    if feed.sequence.assumed:
        doubts.append("reconnected without a replay: only the batch numbers say that nothing was missed")
    if feed.loss:
        relearning, reports = feed.exact.relearning, feed.exact.reported.clock - feed.reports_before
        learned = f"{feed.exact.block_copies.blocks} blocks learned since, from events and {reports} reports"
        if relearning.asks:
            learned += f", {relearning.learned_blocks} of them announced again"
        known = f"{learned}; exact once the cache has turned over or is reset"
        return Residency.APPROXIMATE, "; ".join([feed.loss, *(doubts or [known])])
    if feed.drift.found:
        doubts.append(f"{feed.drift.found}; repaired by reports, exact after the next cache reset")
    if doubts:
        return Residency.APPROXIMATE, "; ".join(doubts)
    words, waiting = f"{feed.batches} event batches applied", len(feed.exact.orphans)
    if feed.sequence.replayed:
        words += f", {feed.sequence.replayed} of them replayed"
    return Residency.EXACT, f"{words}; {waiting} blocks wait for their parents" if waiting else words


def _joined(*reasons: str) -> str:
    """Join the non-empty reasons, each one once."""
    said: list[str] = []
    for reason in filter(None, reasons):
        if not any(reason in before for before in said):
            said.append(reason)
    return "; ".join(said)
