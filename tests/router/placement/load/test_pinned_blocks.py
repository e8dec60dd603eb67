"""KV blocks of prefill workers that neither requests nor handovers explain, on a clock that is an argument."""

from math import inf
from types import SimpleNamespace

import pytest

from backends.worker import LoadReport
from router.config.model import HandoverConfig
from router.placement.load.pinned_blocks import MOST_HANDED, PinnedBlocks
from router.placement.load.shared_load import LoadTotals

CONFIG = HandoverConfig(connector="nixl_pull", lease_s=30.0)
CAPACITY = 100_000


def worker(role="prefill", live=True):
    endpoint = SimpleNamespace(role=role)
    return SimpleNamespace(id="p:1", endpoint=endpoint, live=live, block_tokens=16, capacity_tokens=CAPACITY)


class Watch:
    def __init__(self, tokens=1_000):
        self.pinned = PinnedBlocks(CONFIG)
        self.pinned.handed("p:1", 1, tokens, 0.0)

    def report(self, used_tokens, *times_s, running=0, reserved=0, kv_tokens=0, **about):
        for at_s in times_s:
            report = LoadReport(0, running, 0, used_tokens / CAPACITY)
            load = LoadTotals(running_requests=reserved, kv_tokens=kv_tokens)
            self.pinned.reported(worker(**about), report, load, at_s)

    @property
    def stuck_tokens(self):
        return self.pinned.stuck_tokens("p:1")


def test_blocks_that_no_lease_explains_are_stuck():
    watch = Watch()
    watch.pinned.read("p:1", 1)
    watch.report(1_000, *range(10, 50, 5))
    assert watch.stuck_tokens == 1_000 - 2 * 16
    assert watch.pinned.statistics(["p:1", "p:2"]) == {"p:1": 968}
    assert watch.pinned.statistics(["p:2"]) == {}


def test_blocks_that_come_back_within_the_lease_are_not():
    watch = Watch()
    watch.pinned.read("p:1", 1)
    watch.report(1_000, 10.0, 20.0, 30.0)
    watch.report(0, 35.0)
    watch.report(1_000, 40.0, 50.0, 60.0)
    assert watch.stuck_tokens == 0


def test_a_prompt_that_waits_to_be_read_explains_its_blocks_until_its_lease_is_over():
    watch = Watch()
    watch.report(1_000, *range(5, 90, 5))
    assert watch.stuck_tokens == 0
    watch.report(1_000, *range(90, 130, 5))
    assert watch.stuck_tokens == 968


def test_reserved_requests_explain_their_context():
    watch = Watch()
    watch.pinned.read("p:1", 1)
    watch.report(5_000, *range(10, 60, 5), running=1, reserved=1, kv_tokens=4_960)
    assert watch.stuck_tokens == 0


def test_reports_with_requests_of_others_are_not_judged():
    watch = Watch()
    watch.report(90_000, *range(10, 200, 5), running=2, reserved=1)
    assert watch.stuck_tokens is None


def test_few_reports_and_short_times_say_nothing():
    watch = Watch()
    watch.pinned.read("p:1", 1)
    watch.report(1_000, 10.0, 60.0)
    assert watch.stuck_tokens is None
    brief = Watch()
    brief.report(1_000, *range(10, 40, 5))
    assert brief.stuck_tokens is None


@pytest.mark.parametrize("about", [{"role": "decode"}, {"live": False}])
def test_only_prefill_workers_of_the_fleet_are_watched(about):
    watch = Watch()
    watch.report(1_000, *range(10, 60, 5))
    assert watch.stuck_tokens is not None
    watch.report(1_000, 60.0, **about)
    assert (watch.stuck_tokens, watch.pinned.statistics(["p:1"])) == (None, {})


def test_a_worker_that_has_handed_nothing_over_is_not_watched():
    pinned = PinnedBlocks(CONFIG)
    pinned.read("p:1", 1)
    pinned.reported(worker(), LoadReport(0, 0, 0, 0.5), LoadTotals(), 1.0)
    assert pinned.stuck_tokens("p:1") is None


def test_workers_that_come_and_go_are_forgotten():
    pinned = PinnedBlocks(CONFIG)
    for number in range(5_000):
        pinned.handed(f"p:{number}", number, 10, 0.0)
    assert len(pinned._watched) == 4_096


def test_more_prompts_than_are_kept_suspend_the_judgement():
    watch = Watch()
    for plan in range(MOST_HANDED + 10):
        watch.pinned.handed("p:1", plan, 10, 0.0)
    watch.report(CAPACITY, *range(10, 60, 5))
    assert watch.stuck_tokens is None
    watch.report(CAPACITY, *range(100, 200, 5))
    assert watch.stuck_tokens == CAPACITY - 32


class Row:
    """The row of one of two processes. Satisfies the part of `SharedAccount` that the watch uses."""

    def __init__(self):
        self.tokens, self.other = 0.0, self

    def handed(self, tokens):
        self.tokens = tokens

    def handed_by_other_processes(self):
        return self.other.tokens


def test_what_another_process_does_not_know_suspends_the_judgement():
    watch, row = Watch(), Row()
    row.other = other = Row()
    watch.pinned.handed("p:1", 1, 1_000, 0.0, row)
    assert row.tokens == 1_000
    other.handed(inf)
    watch.report(5_000, *range(5, 60, 5))
    assert watch.stuck_tokens is None
    other.handed(3_000.0)
    watch.report(5_000, *range(60, 110, 5))
    assert watch.stuck_tokens == 5_000 - 3_000 - 1_000 - 2 * 16


def test_a_worker_that_is_watched_no_more_explains_nothing_to_others():
    watch, row = Watch(), Row()
    for plan in range(MOST_HANDED + 2):
        watch.pinned.handed("p:1", plan, 10, 0.0, row)
    assert row.tokens == inf
    watch.report(0, 5.0, role="decode")
    assert row.tokens == 0
