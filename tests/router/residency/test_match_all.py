from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from policies.view import Residency
from router.residency.residency_map import ResidencyMap
from router.residency.view import Match
from tests.support.kv_wire import Wire, ids_prompt, text_prompt

SLOTS = [0, 1, 2, 3, 64]
UNKNOWN = 9
SIZES = [4, 8]
PROMPTS = [
    [kind for kind in kinds for _ in range(4)] + [9] * 3
    for kinds in ([], [0, 0], [0, 0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1])
]
"""Blocks of four equal tokens each, with common prefixes, and three tokens more."""
VERDICTS = [Residency.UNKNOWN, Residency.EXACT, Residency.EXACT, Residency.APPROXIMATE, Residency.OFF]
ACTIONS = [
    *["stored"] * 6, *["reserve"] * 4, *["serve"] * 4, "removed", "cleared", "missed", "link_up", "link_lost",
    "replayed", "verdict", "add", "remove", "configure", "first_token", "finished", "release",
]  # fmt: skip


class Machine:
    """A map, and for each slot what its worker would publish."""

    def __init__(self, draw):
        self.draw = draw
        self.map = ResidencyMap()
        self.wires = {}
        self.sequence = Counter()
        self.tickets = []
        # A decision passes the same array as long as the fleet is the same, and results are kept by its identity.
        self.asked = [
            np.array(draw(st.lists(st.sampled_from([*SLOTS, UNKNOWN]), min_size=1, max_size=6, unique=True)), np.int64)
            for _ in range(2)
        ]
        self.asked.append(np.array(SLOTS, np.int64))

    def tokens(self):
        return self.draw(st.sampled_from(PROMPTS))

    def prompt(self):
        return self.draw(st.sampled_from([ids_prompt, ids_prompt, text_prompt]))(self.tokens())

    def add(self, slot, events=None):
        block_size = self.draw(st.sampled_from(SIZES))
        events = self.draw(st.sampled_from([True, True, False])) if events is None else events
        self.map.add(slot, f"w:{slot}", block_size, self.draw(st.sampled_from([None, 6, 50])), events)
        self.wires[slot] = Wire("map", salt=slot, block_size=block_size)
        self.sequence[slot] = 0
        if self.draw(st.booleans()):  # nothing was missed, so the view is exact
            self.map.slot(slot).link_up()
            self.map.slot(slot).replay_ended(True)

    def send(self, slot, *events):
        if slot in self.wires:
            self.map.slot(slot).ingest(self.sequence[slot], self.wires[slot].batch(*events))
            self.sequence[slot] += 1

    def step(self, action):
        draw, slot = self.draw, self.draw(st.sampled_from(SLOTS))
        wire = self.wires.get(slot)
        if action == "add":
            self.add(slot)
        elif action == "remove":
            self.map.remove(slot)
            self.wires.pop(slot, None)
        elif action == "configure":
            size, events = draw(st.sampled_from([None, *SIZES])), draw(st.sampled_from([None, None, True, False]))
            self.map.slot(slot).configure(
                block_size=size, capacity_blocks=draw(st.sampled_from([None, 10])), events=events
            )
            if wire is not None and size is not None:
                self.wires[slot] = Wire("map", salt=slot, block_size=size)
        elif action in ("stored", "removed") and wire is not None:
            tokens, medium = self.tokens(), draw(st.sampled_from(["GPU", "GPU", "CPU"]))
            if action == "stored":
                self.send(slot, wire.stored(tokens, medium=medium))
            else:
                self.send(slot, wire.removed(wire.hashes(tokens)[-1:], medium=medium))
        elif action == "cleared" and wire is not None:
            self.send(slot, wire.cleared())
        elif action == "missed":
            self.sequence[slot] += draw(st.integers(1, 2))
        elif action == "link_up":
            self.map.slot(slot).link_up()
        elif action == "link_lost":
            self.map.slot(slot).link_lost()
        elif action == "replayed":
            self.map.slot(slot).replay_ended(draw(st.booleans()))
        elif action == "verdict":
            blind = draw(st.sampled_from([False, False, True]))
            self.map.slot(slot).tested(draw(st.sampled_from(VERDICTS)), "drawn", blind=blind)
        elif action in ("reserve", "serve"):
            prompt, ticket = self.prompt(), len(self.tickets)
            found = self.map.match(prompt, [slot])[slot] if draw(st.booleans()) else None
            self.map.slot(slot).reserve(prompt, ticket, draw(st.sampled_from([None, 8])), found=found)
            self.tickets.append((slot, prompt))
            if action == "serve":
                self.map.slot(slot).first_token(ticket)
                self.map.slot(slot).finished(prompt, 5, None, ticket)
                self.map.slot(slot).release(ticket)
        elif self.tickets:
            ticket = draw(st.integers(max(0, len(self.tickets) - 4), len(self.tickets) - 1))
            slot, prompt = self.tickets[ticket]
            if action == "first_token":
                self.map.slot(slot).first_token(ticket)
            elif action == "finished":
                self.map.slot(slot).finished(prompt, 5, draw(st.sampled_from([None, 0, 8, 16])), ticket)
            elif action == "release":
                self.map.slot(slot).release(ticket)

    def alone(self, prompt, slot):
        """Return the match of one slot, found block by block."""
        view = self.map._slots.get(slot)
        if view is None:
            return Match(0, 0, Residency.UNKNOWN)
        if view.stale:
            view.refresh()
        if view.residency is Residency.OFF:
            return Match(0, 0, Residency.OFF)
        index, size = self.map._shared.index, view.block_size
        chain, usable = prompt.usable_chain(size)
        start = end = view.resident_blocks(prompt)
        while end < usable and self.map._shared.in_flight.masks.get(chain[end], 0) >> slot & 1:
            end += 1
        tiers = Counter(GPU=start * size)
        for block in chain[start:usable]:
            tier = "GPU" if index.holders(block) & view.bit else index.media(block, view.bit)
            if tier is None:
                break
            tiers[tier] += size
        by_tier = dict(tiers) if prompt.exact and index.tiered and view.slower_tiers else None
        residency = view.residency if prompt.exact else Residency.APPROXIMATE
        return Match(end * size, (end - start) * size, residency, by_tier)

    def compare(self, prompt, slots, first):
        found = self.map.match_all(prompt, slots) if first else None  # the first of the two refreshes stale views
        wanted = {slot: self.alone(prompt, slot) for slot in slots.tolist()}
        found = found or self.map.match_all(prompt, slots)
        assert [found.at(place) for place in range(len(slots))] == [*wanted.values()]
        assert self.map.match(prompt, slots.tolist()) == wanted

    def compare_all(self):
        slots, first = self.draw(st.sampled_from(self.asked)), self.draw(st.booleans())
        for tokens in PROMPTS:
            self.compare(ids_prompt(tokens), slots, first)
        self.compare(text_prompt(PROMPTS[-2]), slots, first)


@given(data=st.data())
def test_a_match_of_many_slots_is_that_of_each(data):
    machine = Machine(data.draw)
    for slot in SLOTS[: data.draw(st.integers(1, len(SLOTS)))]:
        machine.add(slot)
    actions = st.sampled_from(ACTIONS)
    for _ in range(2):
        for action in data.draw(st.lists(actions, min_size=12, max_size=25)):
            machine.step(action)
            if data.draw(st.booleans()):
                machine.compare_all()
        machine.compare_all()


def served(residency, slot, prompt, ticket):
    residency.slot(slot).reserve(prompt, ticket, 0)
    residency.slot(slot).finished(prompt, 0, None, ticket)
    residency.slot(slot).release(ticket)


def test_a_modelled_view_is_matched_by_its_new_block_size():
    """A worker without events, whose first probe shows another block size than assumed."""
    residency, slots, prompt = ResidencyMap(), np.array([0]), ids_prompt(range(33))
    residency.add(0, "w:0", 4, None, False)
    assert residency.match_all(prompt, slots).tokens.tolist() == [0]
    residency.slot(0).configure(block_size=16)
    served(residency, 0, prompt, 1)
    assert residency.match_all(prompt, slots).tokens.tolist() == [32]


def test_a_worker_without_prefix_caching_holds_nothing():
    """One view with events and one without hold the prompt, until their self-tests say that caching is off."""
    residency, slots, prompt = ResidencyMap(), np.array([1, 0]), ids_prompt(range(33))
    wire = Wire("map")
    residency.add(0, "w:0", 4, None, True)
    residency.slot(0).ingest(0, wire.batch(wire.stored(range(32)), wire.stored(range(32), medium="CPU")))
    residency.add(1, "w:1", 4, None, False)
    served(residency, 1, prompt, 1)
    assert residency.match_all(prompt, slots).tokens.tolist() == [32, 32]
    for slot in (0, 1):
        residency.slot(slot).tested(Residency.OFF, "drawn")
    found = residency.match_all(prompt, slots)
    assert [found.at(0), found.at(1)] == [Match(0, 0, Residency.OFF)] * 2
