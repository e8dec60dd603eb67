import pytest

from backends.worker import Endpoint, LoadReport
from policies.view import RequestView, Residency, WorkerId
from router.config.model import HealthConfig
from router.placement.fleet.fleet import Fleet
from router.placement.learning.decode_step_time import Output
from router.placement.learning.speed import PRIOR_TOKEN_S, Speed
from router.placement.load.fleet_load import WorkerLoads
from router.placement.load.fleet_table import STALE_S
from router.placement.load.ledger import LoadAccount
from router.placement.load.running import LoadReservation
from router.placement.load.worker_load import WorkerLoad
from router.residency.view import Match

SPEED = Speed(1e-4, 0.01, 0.0, 1e-8, 0.05)


@pytest.fixture
def fleet(make_rig):
    return make_rig(workers=3).fleet


@pytest.fixture
def load(fleet):
    return WorkerLoad(fleet.candidates[0], LoadAccount())


def reserve(load, tokens, now_s, streams=True):
    reservation = LoadReservation(tokens, tokens, now_s, streams=streams)
    load.reserve(reservation, now_s)
    return reservation


def test_queue_wait_is_the_queue_less_the_time_it_has_run(load):
    assert load.queue_wait_s(SPEED, 0.0) == pytest.approx(0.01)
    reserve(load, 1_000, 0.0)
    reserve(load, 2_000, 0.0)
    assert load.queue_wait_s(SPEED, 0.0) == pytest.approx(0.31)
    assert load.queue_wait_s(SPEED, 0.21) == pytest.approx(0.01 + 0.1)


def test_a_stalled_queue_prices_itself_out(load):
    reserve(load, 1_000, 0.0)
    waits = [load.queue_wait_s(SPEED, second) for second in (1.0, 5.0, 50.0)]
    assert waits == sorted(waits)
    assert waits[-1] > 49.0


def test_decodes_slow_the_next_prefill(load):
    load.account.prefilled(reserve(load, 100_000, 0.0), 0.0)
    assert load.queue_wait_s(SPEED, 1.0) == pytest.approx(0.01 + 1e-3)


def test_prefills_nobody_sees_end_when_their_time_is_up(load):
    reserve(load, 1_000, 0.0, streams=False)
    reserve(load, 1_000, 0.0, streams=False)
    load.settle(SPEED, 0.1)
    assert load.account.queued_tokens == 2_000
    load.settle(SPEED, 0.12)
    assert load.account.queued_tokens == 1_000
    load.settle(SPEED, 1.0)
    assert load.account.queued_tokens == 0
    assert load.account.running_requests == 2


def test_a_late_arrival_credits_what_the_queue_has_done(load):
    reserve(load, 1_000, 0.0)
    situation = load.situation(500, 800, 0.04)
    assert situation.head_start_s == pytest.approx(0.04)
    assert situation.features == (1_500.0, 1.0, 500_000.0 + 500 * (300 + 250), 0.0)
    assert load.situation(500, 500, 0.0).features[3] == 0.0


def test_views_before_anything_is_learned(fleet):
    loads = WorkerLoads()
    loads.of(fleet.candidates[0]).reserve(LoadReservation(70, 100, 0.0), 0.0)
    matches = {0: Match(32, 0, Residency.EXACT), 1: Match(0, 0, Residency.UNKNOWN)}
    first, second, third = loads.views(fleet.candidates, matches, 100, 1.0)
    assert (first.cached_tokens, first.uncached_tokens, first.residency) == (32, 68, Residency.EXACT)
    assert (first.queue_wait_s, first.prefill_s, first.learned) == (70 * PRIOR_TOKEN_S, 68 * PRIOR_TOKEN_S, False)
    assert (second.queue_wait_s, second.prefill_s) == (0.0, 100 * PRIOR_TOKEN_S)
    assert (second.utilisation, second.error_s) == (0.0, 0.0)
    assert third.residency is Residency.UNKNOWN
    assert (first.queued_requests, second.queued_requests) == (1, 0)
    (blind,) = loads.views(fleet.candidates[:1], None, 100, 1.0)
    assert (blind.cached_tokens, blind.uncached_tokens, blind.residency) == (0, 100, Residency.UNKNOWN)


def teach(loads, load, token_s, count=20):
    for index in range(count):
        tokens = 100 + 400 * (index % 5)
        loads.observe(load, load.situation(tokens, tokens, 0.0), 0.01 + token_s * tokens, 0.0)


def test_a_worker_not_yet_learned_borrows_the_median(fleet):
    loads = WorkerLoads()
    fast, slow, new = (loads.of(candidate) for candidate in fleet.candidates)
    assert loads.common_speed() is None
    teach(loads, fast, 1e-5)
    teach(loads, slow, 9e-5)
    views = loads.views(fleet.candidates, {}, 10_000, 0.0)
    assert all(view.learned for view in views)
    assert new.speed is None
    assert views[0].prefill_s < views[1].prefill_s
    assert views[2].prefill_s == views[0].prefill_s


def test_a_fit_nobody_has_tested_for_a_minute_gives_way(fleet):
    """An avoided worker gets a request now and then, which shows whether it is still slow."""
    loads = WorkerLoads()
    fast, slow, _ = (loads.of(candidate) for candidate in fleet.candidates)
    teach(loads, fast, 1e-5)
    teach(loads, slow, 9e-5)
    early, late = (loads.views(fleet.candidates, {}, 10_000, now_s) for now_s in (59.0, 61.0))
    assert early[1].prefill_s > 4 * early[0].prefill_s
    assert late[1].prefill_s == late[0].prefill_s
    loads.observe(slow, slow.situation(100, 100, 61.0), 0.02, 61.0)
    assert loads.views(fleet.candidates, {}, 10_000, 62.0)[1].prefill_s > 4 * early[0].prefill_s


def decode(loads, load, context_tokens, count=40, step_s=(0.01, 1e-7)):
    """Run answers of 101 tokens, one by one, beside a request that holds the given context."""
    fixed_s, context_token_s = step_s
    for index in range(count):
        held = context_tokens * (index % 4)
        decode_s = 100 * (fixed_s + context_token_s * held)
        now_s = 1_000.0 * index
        other = reserve(load, held, now_s)
        load.account.prefilled(other, now_s)
        answer = LoadReservation(0, 0, now_s)
        load.account.answer_began(answer, now_s)
        loads.decoded(load, answer, 101, decode_s, now_s + decode_s)
        load.account.release(other, now_s + decode_s)


def test_decode_externality_follows_the_growth_of_a_step(fleet):
    """For 50 tokens the request's own steps grow by 30,000 tokens, and the steps of two others by 1,050 tokens.

    The second and third workers have learned no growth, so they get the common one.
    """
    loads = WorkerLoads()
    output = Output(100.0, 100.0)
    first, second, _ = (loads.of(candidate) for candidate in fleet.candidates)
    teach(loads, first, 1e-5)
    assert [view.decode_externality_s for view in loads.views(fleet.candidates, {}, 1_000, 0.0, output)] == [
        0.0,
        0.0,
        0.0,
    ]
    decode(loads, first, 50_000)
    reserve(first, 10_000, 90_000.0)
    reserve(first, 20_000, 90_000.0)
    reserve(second, 30_000, 90_000.0)
    views = loads.views(fleet.candidates, {}, 1_000, 90_000.0, output)
    assert views[0].decode_externality_s == pytest.approx(1e-7 * 50 * (30_000 + 2 * 1_050), rel=0.1)
    assert views[1].decode_externality_s == pytest.approx(1e-7 * 50 * (30_000 + 1 * 1_050), rel=0.1)
    assert views[2].decode_externality_s == 0.0
    assert loads.views(fleet.candidates, {}, 1_000, 90_000.0)[0].decode_externality_s == 0.0


def prompt(*blocks, tokens=0):
    hashes = [hash(blocks[: end + 1]) for end in range(len(blocks))]
    return LoadReservation(tokens or len(blocks) * 16, tokens or len(blocks) * 16, 0.0, hashes=hashes, block_tokens=16)


def test_a_prompt_waits_where_running_requests_leave_no_kv_space(fleet):
    """Five requests need 500,000 tokens of a capacity of 440,000. On another worker they share a prefix and need
    420,000."""
    loads = WorkerLoads()
    full, shared_context, _ = (loads.of(candidate) for candidate in fleet.candidates)
    teach(loads, full, 1e-5)
    for load in (full, shared_context):
        for number in range(5):
            system = ["system"] * 1_250 if load is shared_context else []
            load.reserve(prompt(*system, *[number] * (6_250 - len(system))), 0.0)
    assert [view.kv_wait_s for view in loads.views(fleet.candidates, {}, 10_000, 0.0)] == [0.0, 0.0, 0.0]
    waits = [view.kv_wait_s for view in loads.views(fleet.candidates, {}, 10_000, 0.0, remaining_s=10.0)]
    assert waits == [10.0 * 1 / 5, 0.0, 0.0]
    waits = [view.kv_wait_s for view in loads.views(fleet.candidates, {}, 240_000, 0.0, remaining_s=10.0)]
    assert waits == pytest.approx([10.0 * 300 / 440, 10.0 * 220 / 420, 0.0])


def test_the_kv_wait_needs_no_learned_speed(fleet):
    loads = WorkerLoads()
    reserve(loads.of(fleet.candidates[0]), 440_000, 0.0)
    view = loads.views(fleet.candidates, {}, 1_000, 0.0, remaining_s=10.0)[0]
    assert (view.kv_wait_s, view.learned) == (10.0, False)


def test_equal_tokens_take_equal_times_before_anything_is_learned(fleet):
    loads = WorkerLoads()
    reserve(loads.of(fleet.candidates[0]), 1_234, 0.0)
    reserve(loads.of(fleet.candidates[1]), 1_233, 0.0)
    matches = {0: Match(1, 0, Residency.EXACT)}
    views = loads.views(fleet.candidates, matches, 9_999, 3.0)
    assert views[0].queue_wait_s + views[0].prefill_s == views[1].queue_wait_s + views[1].prefill_s


def test_the_prior_gives_way_to_the_median_and_this_to_the_own_speed(fleet):
    loads = WorkerLoads()
    first = fleet.candidates[0]
    assert {loads.speed_source(candidate, 0.0) for candidate in fleet.candidates} == {"prior"}
    teach(loads, loads.of(first), 1e-5)
    assert [loads.speed_source(candidate, 0.0) for candidate in fleet.candidates] == ["learned", "fleet", "fleet"]
    assert all(view.learned for view in loads.views(fleet.candidates, {}, 9_000, 0.0))
    assert loads.speed_source(first, STALE_S + 1.0) == "fleet", "nothing was observed there for long"


def test_space_freed_by_an_ended_request_is_used_at_once(fleet):
    loads = WorkerLoads()
    load = loads.of(fleet.candidates[0])
    teach(loads, load, 1e-5)
    first, second = prompt(*["system"] * 15_000), prompt(*["system"] * 15_000, *["own"] * 12_500)
    for reservation in (first, second):
        load.reserve(reservation, 0.0)
    assert load.account.held_share == pytest.approx(440 / 680)
    assert load.account.kv_tokens == 680_000
    assert loads.views(fleet.candidates, {}, 1_000, 0.5)[0].kv_tokens == 440_000
    load.account.release(first, 1.0)
    assert load.account.held_share == 1.0
    assert loads.views(fleet.candidates, {}, 1_000, 1.0, remaining_s=10.0)[0].kv_wait_s == 10.0
    load.account.release(second, 2.0)
    assert loads.views(fleet.candidates, {}, 1_000, 2.0, remaining_s=10.0)[0].kv_wait_s == 0.0


def idle_context(loads, fleet, now_s):
    return [view.idle_tokens for view in loads.views(fleet.candidates, {}, 1_000, now_s)]


def turns(loads, load, *, gap_s, cached=True):
    """Run a conversation of 3,200 tokens (32 ms of prefill) whose next turns come twice after `gap_s`, from 0 s on."""
    now_s = 0.0
    for number in range(3):
        turn = prompt(*range(200 + number))
        loads.arrived(turn.hashes, now_s)
        load.reserve(turn, now_s)
        loads.released(load, turn, "m", now_s, cached=cached)
        now_s += gap_s
    return now_s - gap_s


def test_idle_context_counts_for_as_long_as_its_prefill_would_take(fleet):
    loads = WorkerLoads()
    load = loads.of(fleet.candidates[1])
    teach(loads, load, 1e-5)
    now_s = turns(loads, load, gap_s=0.01)
    assert idle_context(loads, fleet, now_s + 0.01) == [0, 202 * 16, 0], "the turns before are part of it"
    going_on = prompt(*range(210))
    load.reserve(going_on, now_s + 0.02)
    assert idle_context(loads, fleet, now_s + 0.02) == [0, 0, 0], "and it is part of the one that goes on with it"
    loads.released(load, going_on, "m", now_s + 0.03, cached=False)
    assert idle_context(loads, fleet, now_s + 0.03) == [0, 202 * 16, 0]
    assert idle_context(loads, fleet, now_s + 0.05) == [0, 0, 0]


def test_a_prompt_does_not_wait_for_what_it_has_itself_left_and_lost(fleet):
    """Of 440,000 tokens, 3,232 were idle context and then evicted. The prompt that continues it needs all the rest."""
    loads = WorkerLoads()
    load = loads.of(fleet.candidates[1])
    teach(loads, load, 1e-5)
    now_s = turns(loads, load, gap_s=0.01)
    again = [hash(tuple(range(end + 1))) for end in range(204)]

    def rests(tokens, hashes=()):
        return loads.views(fleet.candidates, {}, tokens, now_s, hashes=hashes)[1].idle_tokens

    assert rests(436_000, again) == 202 * 16, "it fits"
    assert rests(440_000) == 202 * 16, "another prompt does not"
    assert rests(440_000, again) == 0
    assert rests(440_000, [again[0], 7]) == 201 * 16, "which has one block of it"


@pytest.mark.parametrize("how", [{"gap_s": 0.04}, {"gap_s": 0.01, "cached": False}])
def test_context_that_is_worthless_or_absent_is_not_idle_context(fleet, how):
    loads = WorkerLoads()
    load = loads.of(fleet.candidates[1])
    teach(loads, load, 1e-5)
    assert idle_context(loads, fleet, turns(loads, load, **how)) == [0, 0, 0]


def test_there_is_no_idle_context_while_no_speed_is_known(fleet):
    loads = WorkerLoads()
    assert idle_context(loads, fleet, turns(loads, loads.of(fleet.candidates[1]), gap_s=0.01)) == [0, 0, 0]


def test_answers_teach_nothing_while_prefills_cannot_be_told_from_them(fleet):
    loads = WorkerLoads()
    load = loads.of(fleet.candidates[0])
    decode(loads, load, 50_000)
    loads.decoded(load, LoadReservation(0, 0, 0.0), None, 1.0, 1.0)
    assert load.steps.count == 0


def test_unreserved_load_counts_in_the_views(fleet):
    loads = WorkerLoads()
    candidate = fleet.candidates[0]
    load = loads.of(candidate)
    for _ in range(60):
        load.account.release(reserve(load, 200, 0.0), 0.0)
    for second in (1.0, 2.0):
        loads.load_reported(candidate, LoadReport(0, 5, 2, 0.1), second)
    (view,) = loads.views([candidate], None, 10, 2.0)
    assert (view.running_requests, view.queued_requests) == (7, 2)
    assert view.kv_tokens == 44_000
    assert view.queued_tokens == pytest.approx(400, abs=2)
    (later,) = loads.views([candidate], None, 10, 60.0)
    assert (later.running_requests, later.kv_tokens, later.queued_tokens) == (0, 0, 0)


def test_the_next_owner_of_a_slot_starts_empty(fleet, facts):
    loads = WorkerLoads()
    old = fleet.get("h:2").candidates[0]
    loads.of(old).reserve(LoadReservation(70, 100, 0.0), 0.0)
    fleet.remove("h:2")
    fleet.add(Endpoint("http", "h", 9), 0.0)
    fleet.probe_succeeded("h:9", facts(), 0.0)
    heir = fleet.get("h:9").candidates[0]
    assert heir.slot == old.slot
    assert loads.of(heir).account.queued_tokens == 0
    loads.of(old)
    assert loads.of(heir) is loads.of(heir)
    assert set(loads.statistics(fleet.candidates)) == {"h:1", "h:3", "h:9"}


def teach_small(loads, load):
    for index in range(30):
        tokens = (16, 4, 15, 1)[index % 4]
        loads.observe(load, load.situation(tokens, tokens + 96, 0.0), 0.045 if index % 15 == 14 else 0.01, 0.0)


def test_small_prompts_alone_leave_the_prior_in_force(fleet):
    loads = WorkerLoads()
    for candidate in fleet.candidates:
        teach_small(loads, loads.of(candidate))
    assert loads.common_speed() is None
    assert [view.prefill_s for view in loads.views(fleet.candidates, {}, 9_000, 0.0)] == [9_000 * PRIOR_TOKEN_S] * 3


def test_small_prompts_and_then_a_huge_one_lock_nobody_out(fleet):
    loads = WorkerLoads()
    small, told, _ = (loads.of(candidate) for candidate in fleet.candidates)
    teach(loads, told, 20e-6)
    teach_small(loads, small)
    reservation = reserve(small, 9_000, 0.0, streams=False)
    small.account.release(reservation, 1.0)
    first, second, _ = loads.views(fleet.candidates, {}, 1_580, 1.0)
    assert first.utilisation < 0.1
    assert first.prefill_s < 3.0 * second.prefill_s
    assert first.queue_wait_s + first.prefill_s < 3.0 * (second.queue_wait_s + second.prefill_s)


def test_views_carry_the_operators_labels(shadow_residency, facts):
    fleet = Fleet(HealthConfig(), shadow_residency)
    for port, labels in ((1, {"lane": "prefill"}), (2, None)):
        fleet.add(Endpoint("http", "h", port), 0.0, labels)
        fleet.probe_succeeded(f"h:{port}", facts(), 0.0)
    assert [view.labels for view in WorkerLoads().views(fleet.candidates, None, 100, 0.0)] == [{"lane": "prefill"}, {}]


def test_requests_that_hung_together_are_no_change_of_speed(fleet):
    loads = WorkerLoads()
    load = loads.of(fleet.candidates[0])
    teach(loads, load, 1e-5)
    before = load.estimate.speed().token_s
    met = load.situation(1_000, 1_000, 100.0)
    for number in range(12):
        loads.observe(load, met, 10.0, 110.0 + number)
    assert load.estimate.speed().token_s < 10.0 * before  # forgetting alone
    hung, usual = load.estimate.speed().token_s, 0.01 + 1e-5 * 1_000
    loads.observe(load, load.situation(1_000, 1_000, 130.0), usual, 130.0 + usual)
    assert load.estimate.speed().token_s <= hung


def test_requests_that_wait_one_after_the_other_are_one(fleet):
    loads = WorkerLoads()
    load = loads.of(fleet.candidates[0])
    teach(loads, load, 1e-5)
    before = load.estimate.speed().token_s
    for number in range(5):
        loads.observe(load, load.situation(1_000, 1_000, 100.0 + number), 0.2, 100.5 + number)
    assert load.estimate.speed().token_s > 8.0 * before


def test_the_share_of_running_requests_is_known_by_worker_while_it_is_in_the_fleet(fleet, facts):
    loads = WorkerLoads()
    first, second, _ = fleet.candidates
    like = RequestView("r", "m", 48, 16, prompt(1, 2).hashes)
    loads.of(first).reserve(prompt(1, 2, 3), 0.0)
    loads.of(first).reserve(prompt(4), 0.0)
    loads.of(second).reserve(prompt(1, 5), 0.0)
    assert [loads.running_share(first.id, like, blocks) for blocks in (0, 1, 2, 3)] == [0.0, 0.5, 0.5, 0.0]
    assert [loads.running_share(second.id, like, blocks) for blocks in (1, 2)] == [1.0, 0.0]
    assert loads.running_share(WorkerId("h:99"), like, 1) == 0.0
    fleet.remove("h:1")
    fleet.add(Endpoint("http", "h", 9), 0.0)
    fleet.probe_succeeded("h:9", facts(), 0.0)
    heir = fleet.get("h:9").candidates[0]
    assert heir.slot == first.slot
    assert loads.running_share(heir.id, like, 1) == 0.0
    loads.of(heir).reserve(prompt(1), 0.0)
    assert (loads.running_share(heir.id, like, 1), loads.running_share(first.id, like, 1)) == (1.0, 0.0)
