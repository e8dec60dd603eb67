from router.residency.residency_map import ResidencyMap
from tests.support.kv_wire import ids_prompt


def new_map(blocks):
    residency = ResidencyMap()
    residency.add(0, "w:1", 4, blocks + 1, False)
    return residency


def held(residency, prompt):
    return residency.match(prompt, [0])[0].tokens


def serve(residency, prompt, ticket, generated=0, cached=None):
    residency.slot(0).reserve(prompt, ticket, held(residency, prompt))
    residency.slot(0).first_token(ticket)
    residency.slot(0).finished(prompt, generated, cached, ticket)
    residency.slot(0).release(ticket)


def test_a_reserved_request_evicts_before_a_later_one_matches():
    residency = new_map(8)
    old, new = ids_prompt(range(17)), ids_prompt(range(100, 121))
    serve(residency, old, 1)
    assert held(residency, old) == 16
    residency.slot(0).reserve(new, 2, 0)
    assert held(residency, old) == 8, "six of the eight blocks are the new prompt's"
    residency.slot(0).release(2)
    assert residency.statistics()["slots"][0]["model"]["reserved_blocks"] == 0


def test_a_reserved_request_takes_space_for_half_an_answer():
    residency = new_map(20)
    serve(residency, ids_prompt(range(5)), 1, generated=40)
    residency.slot(0).reserve(ids_prompt(range(100, 109)), 2, 0)
    assert residency.statistics()["slots"][0]["model"]["reserved_blocks"] == 8, "9 tokens and 20"


def test_a_hit_on_a_neighbours_blocks_leaves_the_capacity_unchanged():
    residency = new_map(20)
    for ticket, first in enumerate(range(0, 300, 100), start=1):
        serve(residency, ids_prompt(range(first, first + 25)), ticket)
    for ticket in range(10, 14):  # a full cache that holds less than assumed is smaller than assumed
        serve(residency, ids_prompt(range(25)), ticket, cached=0)
    model = residency.statistics()["slots"][0]["model"]
    unseen = model["unseen_blocks"]
    assert unseen > 0
    for ticket in (20, 21):
        residency.slot(0).reserve(ids_prompt(range(500, 525)), ticket, held(residency, ids_prompt(range(500, 525))))
    residency.slot(0).finished(ids_prompt(range(500, 525)), 0, 0, 20)
    residency.slot(0).finished(ids_prompt(range(500, 525)), 0, 24, 21)
    assert residency.statistics()["slots"][0]["model"]["unseen_blocks"] == unseen
