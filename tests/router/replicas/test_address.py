"""Redis URLs in their three forms, and mistakes in the section `redis` with place and fix."""

import pytest
import trustme

from router.config.model import to_builtins
from router.config.problems import ConfigError
from router.replicas.address import RedisAddress, parse_address
from router.settings import load


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://r1", RedisAddress("standalone", False, (("r1", 6379),))),
        ("redis://r1:7000/3", RedisAddress("standalone", False, (("r1", 7000),), database=3)),
        ("rediss://[::1]:7000", RedisAddress("standalone", True, (("::1", 7000),))),
        ("redis+sentinel://a,b:1/warm/2", RedisAddress("sentinel", False, (("a", 26379), ("b", 1)), "warm", 2)),
        ("rediss+sentinel://a/warm", RedisAddress("sentinel", True, (("a", 26379),), "warm")),
        ("redis+cluster://a:1,b", RedisAddress("cluster", False, (("a", 1), ("b", 6379)))),
        ("rediss+cluster://a", RedisAddress("cluster", True, (("a", 6379),))),
    ],
)
def test_a_url_is_read(url, address):
    assert parse_address(url) == address


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://r1", "its scheme"),
        ("r1:6379", "its scheme"),
        ("redis://user:hidden@r1", "a user name or a password"),
        ("redis://r1?db=1", "after ? or #"),
        ("redis://a,b", "several servers"),
        ("redis://", "names no host"),
        ("redis://a:0", "the port of a"),
        ("redis://a:70000", "the port of a"),
        ("redis://a/x", "database is no number"),
        ("redis://a/1/2", "database is no number"),
        ("redis+sentinel://a", "names no service"),
        ("redis+cluster://a/1", "a cluster has one only"),
        ("redis://[::1", "cannot be used"),
    ],
)
def test_a_wrong_url_is_named_without_its_secret(url, why):
    with pytest.raises(ConfigError) as raised:
        load({"redis.url": url}, {}, None)
    (problem,) = raised.value.problems
    assert problem.place == "--set redis.url" and why in problem.problem and "hidden" not in str(problem)
    assert "redis+sentinel://HOST:PORT" in problem.fix


@pytest.mark.parametrize(
    ("values", "place", "said"),
    [
        ({"redis.password": "p"}, "redis.password", "no redis.url"),
        ({"redis.ca": "ca.pem"}, "redis.ca", "no redis.url"),
        ({"redis.url": "redis://a", "redis.username": "u"}, "redis.username", "no redis.password"),
        ({"redis.url": "redis://a", "redis.password": "***"}, "redis.password", "not shown"),
        ({"redis.url": "redis://a", "redis.sentinel_password": "p"}, "redis.sentinel_password", "no sentinels"),
        ({"redis.url": "rediss://a", "redis.ca": "nowhere"}, "redis.ca", "cannot read 'nowhere'"),
        ({"redis.fleet": "{x}"}, "redis.fleet", "'{x}'"),
        ({"redis.fleet": ""}, "redis.fleet", "''"),
    ],
)
def test_a_mistake_names_its_setting(values, place, said):
    with pytest.raises(ConfigError) as raised:
        load(values, {}, None)
    (problem,) = raised.value.problems
    assert problem.place == f"--set {place}" and said in problem.problem and problem.fix


def test_a_ca_without_tls_is_a_mistake(tmp_path):
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    with pytest.raises(ConfigError, match="uses no TLS"):
        load({"redis.url": "redis://a", "redis.ca": str(tmp_path / "ca.pem")}, {}, None)


def test_passwords_are_not_shown():
    values = {"redis.url": "redis+sentinel://a/warm", "redis.password": "one", "redis.sentinel_password": "two"}
    shown = to_builtins(load(values, {}, None))["redis"]
    assert (shown["password"], shown["sentinel_password"]) == ("***", "***")


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr("router.replicas.settings.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'warmroute\[redis\]'"):
        load({"redis.url": "redis://a"}, {}, None)
