"""A decision log replays to the same choices, for every rule, and another policy can decide on it."""

import pickle
import random
from copy import deepcopy

import msgspec
import pytest

from policies.registry import PolicyError, policy_names
from policies.spec import PolicySpec
from policies.view import (
    Decision,
    FleetView,
    LifecycleEvent,
    LifecycleEventKind,
    RequestView,
    Residency,
    WorkerId,
    WorkerView,
)
from router.placement.decision_log.lines import (
    VERSION,
    DecisionLine,
    EventLine,
    PolicyLine,
    PromptLine,
    SnapshotLine,
    decode,
    encode,
    packed,
    unpacked,
)
from router.placement.decision_log.log_replay import LogError, LogReplay
from router.placement.decision_log.recorder import MARK_BLOCKS, Recorder
from router.placement.decision_log.summary import summed
from router.placement.load.fleet_load import ARRAYS_FROM
from tests.router.placement.conftest import VirtualFleet


class Lines:
    """A sink in memory. It loses every line after `limit`."""

    def __init__(self, limit=1_000_000):
        self.lines, self.limit, self.full, self.rotations = [], limit, False, 0

    def write(self, line):
        if len(self.lines) >= self.limit:
            return False
        self.lines.append(line)
        return True

    def rotate(self):
        self.full, self.rotations = False, self.rotations + 1


def conversations(count=12, turns=4, seed=5):
    """Requests of conversations over two system prompts, with some long ones."""
    rng = random.Random(seed)
    systems = [[rng.randrange(30_000) for _ in range(400)] for _ in range(2)]
    contexts = [list(rng.choice(systems)) for _ in range(count)]
    requests, at_s = [], 0.0
    for _ in range(turns):
        for context in contexts:
            at_s += rng.expovariate(40.0)
            context += [rng.randrange(30_000) for _ in range(rng.choice([20, 60, 3_000]))]
            requests.append((at_s, list(context), rng.choice([5, 40])))
    return requests


def recorded(rule, workers=3, hold=None, lanes=None, sink=None, requests=None, weight=1.0, **options):
    """Play conversations and return the sink and the log's recorder. `weight` is the first worker's."""
    sink = Lines() if sink is None else sink
    fleet = VirtualFleet(rule, workers=workers, hold=hold, lanes=lanes, seed=3, num_blocks=2_000)
    sink.core = fleet.core
    fleet.fleet.describe(fleet.fleet.endpoints[0].id, {}, weight, None, "mixed")
    recorder = Recorder(sink, lambda: 1_700_000_000.0, **options)
    fleet.core.record(recorder)
    fleet.run(conversations() if requests is None else requests)
    return sink, recorder


@pytest.mark.parametrize("wrapped", [pytest.param(False, marks=pytest.mark.nightly), True], ids=["plain", "wrapped"])
@pytest.mark.parametrize("rule", policy_names())
def test_the_policy_that_made_the_log_and_its_copy_choose_the_same(rule, wrapped):
    sink, recorder = recorded(rule, hold=wrapped, lanes=wrapped)
    replay = LogReplay(sink.lines)
    found = list(replay)
    assert len(found) == recorder.decisions >= 48
    assert [one for one in found if not one.same] == []
    assert not replay.stateless
    policy = sink.core.policies.default.policy
    copied = deepcopy(policy)
    for record in sink.core.log.latest(5):
        one, other = (each.decide(record.request, record.fleet) for each in (policy, copied))
        assert (one.ranked, one.reason, one.hold_s) == (other.ranked, other.reason, other.hold_s)


def test_the_end_of_a_request_has_the_length_of_its_answer():
    lines = [decode(line) for line in recorded("round_robin")[0].lines]
    ends = [line for line in lines if isinstance(line, EventLine) and line.kind is LifecycleEventKind.FINISHED]
    assert sorted(line.output_tokens for line in ends) == sorted(length for _, _, length in conversations())
    assert {line.output_tokens for line in lines if isinstance(line, EventLine)} == {None, 5, 40}


@pytest.mark.parametrize("rule", ["marginal_cost", "dynamo_default", "llmd_sticky", "preble"])
def test_decisions_of_a_large_fleet_replay_from_arrays(rule):
    sink, recorder = recorded(rule, workers=ARRAYS_FROM + 5, requests=conversations(10, 3))
    assert any(b'"columns":{' in line for line in sink.lines)
    same = [one.same for one in LogReplay(sink.lines)]
    assert same == [True] * recorder.decisions and len(same) >= 30


@pytest.mark.parametrize(
    ("rule", "workers"),
    [("marginal_cost", 3), ("random", ARRAYS_FROM + 5), ("lmetric", ARRAYS_FROM + 5), ("round_robin", 3)],
)
def test_weights_are_part_of_the_log(rule, workers):
    sink, recorder = recorded(rule, workers, requests=conversations(10, 3), weight=0.1)
    found = [(one.same, one.recorded) for one in LogReplay(sink.lines)]
    assert len(found) == recorder.decisions >= 30
    assert all(same for same, _ in found)
    plain, _ = recorded(rule, workers, requests=conversations(10, 3))
    assert [made for _, made in found] != [one.recorded for one in LogReplay(plain.lines)]


@pytest.mark.parametrize(("rule", "wrapped"), [(rule, bool(n % 2)) for n, rule in enumerate(policy_names())])
def test_every_window_replays_by_itself(rule, wrapped):
    sink, recorder = recorded(rule, hold=wrapped, lanes=wrapped, share=0.5, window_s=0.2)
    starts = [place for place, line in enumerate(sink.lines) if isinstance(decode(line), SnapshotLine)]
    assert len(starts) > 2
    assert recorder.decisions < 48
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        replay = LogReplay(sink.lines[start:end])
        assert all(one.same for one in replay)
        assert not replay.stateless


def test_another_rule_is_compared_with_the_log():
    sink, recorder = recorded("round_robin")
    summary = summed(LogReplay(sink.lines, "lpwl"), shown=5)
    assert summary.decisions == recorder.decisions
    assert 0 < summary.same < summary.decisions
    assert len(summary.first) == 5
    assert summary.replayed.cached_tokens != summary.recorded.cached_tokens
    assert summary.replayed.prompt_tokens == summary.recorded.prompt_tokens


def test_a_policy_of_the_log_can_be_named():
    sink, _ = recorded("random")
    assert all(one.same for one in LogReplay(sink.lines, "default"))
    with pytest.raises(PolicyError, match="no such policy"):
        list(LogReplay(sink.lines, "lpwn"))


def test_prompts_are_written_once():
    rng = random.Random(1)
    context, requests = [], []
    for turn in range(20):
        context = context + [rng.randrange(30_000) for _ in range(160)]
        requests.append((turn * 1.0, list(context), 5))
    sink, _ = recorded("lpwl", requests=requests)
    added = [len(unpacked(decode(line).prompt.added)) for line in sink.lines if line.startswith(b'{"type":"decision"')]
    assert added[0] == 10
    assert max(added) <= 10 + MARK_BLOCKS
    assert sum(added) < 20 * 20


def test_a_lost_line_ends_its_window():
    sink, recorder = recorded("lpwl", sink=Lines(limit=30), share=0.5, window_s=0.2)
    assert recorder.lost_windows >= 1
    assert len(sink.lines) == 30


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_recording_goes_on_after_a_lost_line(share):
    class Slow(Lines):
        def write(self, line):
            lost = len(self.lines) == 30 and not self.rotations
            self.rotations += lost
            return not lost and super().write(line)

    sink, recorder = recorded("lpwl", sink=Slow(), share=share, window_s=0.2)
    assert recorder.lost_windows == 1
    starts = [place for place, line in enumerate(sink.lines) if isinstance(decode(line), SnapshotLine)]
    assert any(start >= 30 for start in starts)
    assert all(one.same for one in LogReplay(sink.lines))


def test_a_full_file_is_followed_by_a_snapshot():
    sink = Lines()
    sink.full = True
    recorded("lpwl", sink=sink)
    assert sink.rotations == 1
    assert isinstance(decode(sink.lines[0]), SnapshotLine)


def test_a_change_of_policy_begins_with_a_snapshot():
    sink = Lines()
    fleet = VirtualFleet("lpwl", workers=2, seed=3)
    fleet.core.record(Recorder(sink, lambda: 0.0))
    fleet.run(conversations(4, 1))
    from policies.registry import build_policy

    spec = PolicySpec("round_robin")
    fleet.core.policies.default.adopt(build_policy(spec, random.Random(0)), spec)
    fleet.run(conversations(4, 1), start_s=1_000.0)
    rules = [decode(line).policies[0].spec.rule for line in sink.lines if isinstance(decode(line), SnapshotLine)]
    assert rules == ["lpwl", "round_robin"]
    assert all(one.same for one in LogReplay(sink.lines))


def test_notes_that_are_taken_later_make_the_same_log():
    def lines(later):
        sink, waiting = Lines(), []
        fleet = VirtualFleet("lpwl", workers=3, seed=3)
        fleet.core.record(Recorder(sink, lambda: 1_700_000_000.0))
        if later:
            fleet.core.defer_notes_with(lambda note, about: waiting.append((note, about)))
        fleet.run(conversations())
        assert bool(fleet.core.log.latest(1)) is not later
        for note, about in waiting:
            note(about)
        return sink.lines, [record.to_builtins() for record in fleet.core.log.latest(1_000)]

    assert lines(later=True) == lines(later=False)


class Evil:
    """Its state would run a command."""

    def __reduce__(self):
        import os

        return os.system, ("true",)


GETATTR = b"cbuiltins\ngetattr\n(crandom\nRandom\nS'__init__'\ntR."


@pytest.mark.parametrize(
    "state", [pickle.dumps(Evil()), b"cos\nsystem\n(S'true'\ntR.", b"crandom\n_os.system\n.", GETATTR]
)
def test_a_state_that_would_run_code_is_not_loaded(state):
    line = SnapshotLine(VERSION, 0.0, 0.0, (PolicyLine("default", PolicySpec("lpwl"), state),))
    replay = LogReplay([encode(line)])
    assert list(replay) == []
    assert replay.stateless == {"default"}


@pytest.mark.parametrize("state", [b"cpolicies.gone\nGone\n.", b"cpolicies.rules.lpwl\nGone\n.", b"cut off", b""])
def test_a_policy_whose_state_cannot_be_loaded_begins_without_it(state):
    line = SnapshotLine(VERSION, 0.0, 0.0, (PolicyLine("default", PolicySpec("lpwl"), state),))
    replay = LogReplay([encode(line)])
    assert list(replay) == []
    assert replay.stateless == {"default"}


@pytest.mark.parametrize("text", [b"{}\n", b"no json\n", b'{"type":"decision"}\n'])
def test_a_line_that_cannot_be_read_is_named(text):
    with pytest.raises(LogError, match="line 1"):
        list(LogReplay([text]))


def test_a_line_with_values_of_another_size_is_named():
    sink, _ = recorded("lpwl", requests=conversations(2, 1))
    place = next(place for place, line in enumerate(sink.lines) if isinstance(decode(line), DecisionLine))
    line = decode(sink.lines[place])
    sink.lines[place] = encode(msgspec.structs.replace(line, prompt=PromptLine(added=b"123")))
    with pytest.raises(LogError, match=f"line {place + 1}: "):
        list(LogReplay(sink.lines))


def test_a_log_of_another_version_is_refused():
    line = SnapshotLine(VERSION + 1, 0.0, 0.0, ())
    with pytest.raises(LogError, match=f"version {VERSION + 1}"):
        list(LogReplay([encode(line)]))


@pytest.mark.parametrize("hold", [False, True])
def test_a_reservation_is_in_the_line_of_its_decision(hold):
    sink, _ = recorded("marginal_cost", hold=hold)
    lines = [decode(line) for line in sink.lines]
    decisions = [line for line in lines if isinstance(line, DecisionLine)]
    placed = [line.request.id for line in decisions if line.reserved]
    assert sorted(placed) == sorted({line.request.id for line in decisions})
    assert not any(line.reserved and line.hold_s for line in decisions)
    assert not any(isinstance(line, EventLine) and line.kind is LifecycleEventKind.RESERVED for line in lines)


def test_a_decision_that_nothing_carries_out_is_written_before_the_next_line():
    sink, recorder = recorded("lpwl", requests=conversations(2, 1))
    number = len(sink.lines)
    request, fleet = (
        RequestView("alone", "", 10, 16, ()),
        FleetView(9.0, (WorkerView(WorkerId("a"), Residency.UNKNOWN, 0, 10, 0, 0, 0, 0, 0.0, 0.0, 0.0, False, 0.0),)),
    )
    for now_s in (9.0, 9.1):
        recorder.before(now_s, {})
        recorder.decided("default", request, fleet, Decision((fleet.ids[0],), "first"))
    assert [decode(line).reserved for line in sink.lines[number:] if b'"decision"' in line[:20]] == [False]
    recorder.observed(LifecycleEvent(LifecycleEventKind.RESERVED, request, WorkerId("b"), 9.1, None, None, fleet))
    decision, reservation = map(decode, sink.lines[-2:])
    assert not decision.reserved and reservation.decision == decision.number


def test_hashes_keep_their_64_bits():
    hashes = (0, 1, 2**63, 2**64 - 1)
    assert unpacked(packed(hashes)) == hashes
