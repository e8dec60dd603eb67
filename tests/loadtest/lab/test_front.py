from dataclasses import replace

from backends.engine.engine import Engine, EngineRequest, HashedText
from backends.engine.profile import load_profile
from loadtest.lab.front import Finds, Front


class Prompt:
    """Hashing costs 100, the first time."""

    def __init__(self, clock):
        self.clock, self.hashed = clock, set()

    def prompt(self):
        return self

    def chain(self, block_tokens):
        self.clock[0] += 0 if block_tokens in self.hashed else 100
        self.hashed.add(block_tokens)


class Gateway:
    """Hearing costs 10, placing 1; what has been heard costs nothing to hear again."""

    def __init__(self, clock):
        self.clock = clock
        self.placed = []
        self.heard = False

    def hear(self):
        self.clock[0] += 0 if self.heard else 10
        self.heard = True

    def place(self, name, session, call):
        self.hear()
        call.prompt().chain(16)
        self.heard = False
        self.clock[0] += 1
        self.placed.append(session)


def test_a_decision_is_not_charged_with_the_tokens_that_came_since_the_last_one_nor_with_hashing():
    clock = [0]
    front = Front([Gateway(clock)], lambda: clock[0], None, 16)
    for number in range(3):
        front.place(f"a/{number}", "a", Prompt(clock))
    assert front.decisions_s == [1, 1, 1]


def test_sessions_are_dealt_out_in_turn_and_stay():
    gateways = [Gateway([0]), Gateway([0])]
    front = Front(gateways, lambda: 0.0, None, 16)
    for session in ("a", "b", "c", "a", "b", "b"):
        front.place(session, session, Prompt([0]))
    assert [gateway.placed for gateway in gateways] == [["a", "c", "a"], ["b", "b", "b"]]
    assert front.statistics() == {"sessions": 3, "decisions": 6}


def test_a_prompt_will_find_what_is_cached_what_is_ahead_of_it_and_what_is_on_its_way():
    engine = Engine(replace(load_profile("llama-3.1-8b-h100"), block_size=16), sample=lambda state: 0, num_blocks=20)
    finds = Finds(engine, 0.5)
    first = [1, 2, 3, 4, 5, 6]
    sibling, cousin, stranger = [1, 2, 3, 4, 50], [1, 2, 30], [7]
    assert finds.tokens(sibling, 90, 0.0) == 0
    finds.add("first", first, 0.0)
    assert [finds.tokens(hashes, 90, 0.5) for hashes in (sibling, cousin, stranger, first)] == [64, 32, 0, 80]

    engine.add(EngineRequest("first", (), 1, hashed=HashedText(96, first)), 0.5)
    assert finds.tokens(sibling, 90, 0.6) == 64, "it waits there"
    engine.step(0.6)
    assert finds.tokens(sibling, 90, 9.0) == 64, "cached"
    engine.reset_prefix_cache()
    assert finds.tokens(sibling, 90, 9.0) == 0, "what was answered is there no more than the cache says"


def test_a_call_that_never_arrived_is_not_waited_for():
    engine = Engine(load_profile("llama-3.1-8b-h100"), sample=lambda state: 0, num_blocks=20)
    finds = Finds(engine, 0.5)
    finds.add("left on the way", [1, 2], 0.0)
    assert finds.tokens([1, 2], 40, 0.6) == 0
