import resource

import pytest

from router.config.descriptors import (
    descriptors_needed,
    fit_connections,
    reachable_descriptors,
    reserve_descriptors,
)
from router.config.model import Config, LimitsConfig

CONFIG = Config(limits=LimitsConfig(max_connections=1_000))


@pytest.fixture
def limits(monkeypatch):
    """The process's limits, as a list that setrlimit writes to."""
    now = [1_024, 1_024]

    def setrlimit(_, pair):
        if now[1] != resource.RLIM_INFINITY and pair[0] > now[1]:
            raise ValueError("not allowed to raise maximum limit")
        now[:] = pair

    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(now))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    return now


def test_a_sufficient_soft_limit_stays_as_it_is(limits):
    limits[:] = [100_000, 100_000]
    assert reserve_descriptors(CONFIG) == (CONFIG, None)
    assert limits == [100_000, 100_000]


@pytest.mark.parametrize("hard", [100_000, resource.RLIM_INFINITY])
def test_soft_limit_is_raised_as_far_as_needed(limits, hard):
    limits[:] = [1_024, hard]
    assert reserve_descriptors(CONFIG) == (CONFIG, None)
    assert limits == [descriptors_needed(CONFIG), hard]


def test_connections_are_lowered_to_what_the_limit_carries(limits):
    limits[:] = [512, 1_024]
    config, warning = reserve_descriptors(CONFIG)
    assert limits == [1_024, 1_024]
    assert config.limits.max_connections == (1_024 - 256 - 64) // 2
    assert descriptors_needed(config) <= 1_024
    assert "limits.max_connections is lowered from 1000 to 352: it needs 2320 open files" in warning
    assert "RLIMIT_NOFILE allows 1024; raise that (ulimit -Hn, LimitNOFILE=)" in warning


def test_a_soft_limit_that_cannot_be_raised_lowers_the_connections(limits, monkeypatch):
    limits[:] = [512, resource.RLIM_INFINITY]

    def refused(_, pair):
        raise OSError("not permitted")

    monkeypatch.setattr(resource, "setrlimit", refused)
    config, warning = reserve_descriptors(CONFIG)
    assert config.limits.max_connections == 128
    assert "allows 512" in warning


@pytest.mark.parametrize("allowed", [40, 90, 256, 600, 2_000])
def test_half_of_few_descriptors_are_kept_for_workers_and_the_admin_port(allowed):
    config, warning = fit_connections(CONFIG, 1, allowed)
    assert warning is not None
    used = 2 * config.limits.max_connections
    assert used <= allowed - min(64, allowed // 4)
    assert config.limits.max_connections >= allowed // 4 - 1 or allowed > 600


def test_each_process_has_a_limit_of_its_own():
    assert fit_connections(CONFIG, 4, 820) == (CONFIG, None)
    config, warning = fit_connections(CONFIG, 4, 720)
    assert config.limits.max_connections == 4 * 200
    assert "it needs 820 open files in each of 4 processes" in warning


def test_the_reachable_limit_is_the_hard_limit(limits):
    assert reachable_descriptors() == 1_024
    limits[:] = [512, resource.RLIM_INFINITY]
    assert reachable_descriptors() is None


def test_without_a_limit_nothing_is_lowered(limits):
    limits[:] = [resource.RLIM_INFINITY, resource.RLIM_INFINITY]
    assert reserve_descriptors(CONFIG) == (CONFIG, None)
