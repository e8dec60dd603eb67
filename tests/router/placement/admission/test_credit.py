import random

import pytest

from router.placement.admission import credit
from router.placement.admission.classes import Claim, RequestClass
from router.placement.admission.cost import Cost
from router.placement.admission.credit import QUANTUM_CHARGES, Credits
from router.placement.admission.lines import PASSED_OVER, ClassLine, Waiting


def served(weights, costs, rounds):
    """Charge whoever has credit, the first of them, in turns among names that always wait."""
    ledger, total = Credits(), dict.fromkeys(weights, 0.0)
    for _ in range(rounds):
        ledger.refill(weights)
        name = next(name for name in weights if ledger.has(name))
        ledger.charge(name, costs[name], weights[name])
        total[name] += costs[name]
    return total


def test_names_that_always_wait_are_served_by_weight():
    total = served({"a": 1.0, "b": 1.0, "c": 2.0}, {"a": 0.1, "b": 1.0, "c": 0.3}, 3_000)
    assert total["a"] == pytest.approx(total["b"], rel=0.05)
    assert total["c"] == pytest.approx(2.0 * total["a"], rel=0.05)


def test_the_difference_is_at_most_a_quantum_and_the_largest_charge():
    rng, ledger, total = random.Random(1), Credits(), {"a": 0.0, "b": 0.0}
    for _ in range(2_000):
        ledger.refill(total)
        name = rng.choice([name for name in total if ledger.has(name)])
        cost = rng.uniform(0.1, 2.0)
        ledger.charge(name, cost)
        total[name] += cost
        assert abs(total["a"] - total["b"]) <= 2 * (QUANTUM_CHARGES * 2.0 + 2.0)


def test_nothing_is_saved_while_idle():
    ledger = Credits()
    for _ in range(100):
        ledger.refill(["busy"])
        ledger.charge("busy", 1.0)
    assert ledger.spent_s("returned") == ledger.level_s - ledger.quantum_s
    turns = 0
    while ledger.has("returned"):
        ledger.charge("returned", 1.0)
        turns += 1
    assert turns <= QUANTUM_CHARGES + 1


def test_a_debt_stays_and_a_settled_charge_is_given_back():
    ledger = Credits()
    for _ in range(10):
        ledger.charge("a", 1.0)
    assert not ledger.has("a")
    before_s = ledger.spent_s("a")
    ledger.settle("a", -4.0)
    assert ledger.spent_s("a") == before_s - 4.0


def test_names_are_bounded_and_those_without_a_debt_go_first(monkeypatch):
    monkeypatch.setattr(credit, "KEPT", 10)
    ledger = Credits()
    for number in range(100):
        ledger.charge(f"t{number}", 1.0)
    assert 9 <= len(ledger) <= 10
    ledger.refill(["t99"])
    assert ledger.has("t0"), "forgotten, so as if never seen"


def test_of_many_tenants_those_with_the_earliest_requests_come_first():
    line, rng = ClassLine(RequestClass("n")), random.Random(2)
    cost = Cost(1.0, 0.0, 0.0, 1.0)
    for number in range(10 * PASSED_OVER):
        claim, arrived_s = Claim(line.of, f"t{rng.randrange(3 * PASSED_OVER)}"), rng.random()
        line.enter(Waiting(number, claim, cost, arrived_s, (0.0, arrived_s, number), 1.0))
    entered = sorted(one.key for tenant in line.tenants.values() for one in tenant.first())
    assert [one.key for one in line.first(0.0, beyond=False)] == entered[:PASSED_OVER]
