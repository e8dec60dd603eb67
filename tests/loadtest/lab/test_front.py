from loadtest.lab.front import Front


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
    front = Front([Gateway(clock)], lambda: clock[0], 16)
    for number in range(3):
        front.place(f"a/{number}", "a", Prompt(clock))
    assert front.decisions_s == [1, 1, 1]


def test_sessions_are_dealt_out_in_turn_and_stay():
    gateways = [Gateway([0]), Gateway([0])]
    front = Front(gateways, lambda: 0.0, 16)
    for session in ("a", "b", "c", "a", "b", "b"):
        front.place(session, session, Prompt([0]))
    assert [gateway.placed for gateway in gateways] == [["a", "c", "a"], ["b", "b", "b"]]
    assert front.statistics() == {"sessions": 3, "decisions": 6}
