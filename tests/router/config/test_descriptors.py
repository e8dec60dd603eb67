import resource

import pytest

from router.config.descriptors import descriptors_needed, reserve_descriptors
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


def test_enough_already(limits):
    limits[:] = [100_000, 100_000]
    assert reserve_descriptors(CONFIG) is None
    assert limits == [100_000, 100_000]


@pytest.mark.parametrize("hard", [100_000, resource.RLIM_INFINITY])
def test_soft_limit_is_raised_as_far_as_needed(limits, hard):
    limits[:] = [1_024, hard]
    assert reserve_descriptors(CONFIG) is None
    assert limits == [descriptors_needed(CONFIG), hard]


def test_warning_with_the_numbers(limits):
    limits[:] = [512, 1_024]
    warning = reserve_descriptors(CONFIG)
    assert limits == [1_024, 1_024]
    assert "max_connections 1000 needs 2256 open files" in warning
    assert "RLIMIT_NOFILE allows 1024" in warning
    assert "limits.max_connections: 384" in warning


def test_no_number_is_advised_where_none_would_do(limits):
    limits[:] = [256, 256]
    warning = reserve_descriptors(CONFIG)
    assert "RLIMIT_NOFILE allows 256; raise it (ulimit -Hn, LimitNOFILE=)" in warning
    assert "write" not in warning


def test_unlimited(limits):
    limits[:] = [resource.RLIM_INFINITY, resource.RLIM_INFINITY]
    assert reserve_descriptors(CONFIG) is None
